"""Tells whether what ``LD_PRELOAD`` names was really loaded.

The loader's answer to a library that it cannot load is a line on standard error, and the program then runs without it:
the stock runtime would be measured under the other one's name.
"""

from __future__ import annotations

import re
from pathlib import Path

_IGNORED = re.compile(r"object '(?P<name>[^']*)' from LD_PRELOAD cannot be preloaded[^\n]*", re.ASCII)


class PreloadError(RuntimeError):
    """A library that ``LD_PRELOAD`` names is not in use."""


def require_preloads(value: str) -> None:
    """Checks that each path in an ``LD_PRELOAD`` exists.

    A name without a slash is the loader's to find, and one with ``$`` its to expand: :func:`refuse_ignored` sees how
    that ended.

    Args:
        value: The variable's value: names separated by colons or blanks.

    Raises:
        PreloadError: There is no such file.
    """
    for name in re.split(r"[:\s]+", value):
        if "/" in name and "$" not in name and not Path(name).is_file():
            raise PreloadError(
                f"LD_PRELOAD names {name!r}, and there is no such file: the program would run on the stock runtime; "
                "set the path of your installation"
            )


def refuse_ignored(stderr: str) -> None:
    """Looks for the loader's word that it left a library out.

    Args:
        stderr: What the program wrote to standard error, in the C locale.

    Raises:
        PreloadError: The loader ignored a library.
    """
    ignored = _IGNORED.search(stderr)
    if ignored is not None:
        raise PreloadError(
            f"the loader ignored {ignored['name']!r} of LD_PRELOAD, so what ran was the stock runtime and does not "
            f"count: {ignored[0]}"
        )
