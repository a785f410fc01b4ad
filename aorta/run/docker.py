"""For workloads that start a container: a trial's variables as flags of ``docker run``. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def docker_env_flags(variables: Mapping[str, str]) -> list[str]:
    """Returns the flags that set exactly these variables in a container.

    Only what is given is passed on: the process's own environment is never read, so nothing of the host leaks into
    the container, and ``NAME`` without a value, which would make Docker read the host's, never occurs.

    Args:
        variables: Names to values; most often ``config["_aorta_trial_env"]``.

    Returns:
        ``["-e", "A=1", "-e", "B=2", ...]``, sorted by name, to put before the image.

    Raises:
        TypeError: A name or a value is not a string.
        ValueError: A name is not made of ASCII letters, digits and underscores or begins with a digit, or a value
            holds a NUL character.

    Example:
        >>> docker_env_flags({"HSA_XNACK": "1", "DISABLE_TF32": "1"})
        ['-e', 'DISABLE_TF32=1', '-e', 'HSA_XNACK=1']
    """
    for name, value in variables.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a variable must be a string, not {name!r}")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not the name of a variable: use ASCII letters, digits and underscores, no digit first"
            )
        if not isinstance(value, str):
            raise TypeError(f"{name}: a value must be a string, not {value!r}; write it as text")
        if "\0" in value:
            raise ValueError(f"{name}: a value must not hold a NUL character")
    return [part for name in sorted(variables) for part in ("-e", f"{name}={variables[name]}")]
