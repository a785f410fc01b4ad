"""Finds hipcc and the device, and compiles the programs of ``aorta/hrx/hip``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aorta.instrumentation._tool import run_tool

SOURCES = Path(__file__).resolve().parent / "hip"
"""The HIP sources that ship."""

KFD = Path("/dev/kfd")
"""The kernel driver's door to AMD GPUs."""

ROCM_HIPCC = Path("/opt/rocm/bin/hipcc")
"""Where a ROCm installation has its compiler."""

_ENDING_LINES = 20
"""How much of a failed compiler's output goes into the error."""


class HipSetupError(RuntimeError):
    """Something that a HIP program needs is not there, and the message says what."""


def find_hipcc(configured: str | None, environ: Mapping[str, str], rocm: Path = ROCM_HIPCC) -> str:
    """Returns the compiler: the configured one, else ``$HIPCC``, else ROCm's own, else the first on PATH.

    Args:
        configured: A path, or a name to look for on PATH; None or empty for the rest of the list.
        environ: Where ``HIPCC`` and ``PATH`` are looked up.
        rocm: ROCm's own compiler.

    Raises:
        HipSetupError: None is there; a compiler that was named is never replaced by another one.
    """
    for said_by, name in (("workload_config.hipcc", configured), ("the variable HIPCC", environ.get("HIPCC"))):
        if name:
            found = shutil.which(name, path=environ.get("PATH"))
            if found is None:
                raise HipSetupError(f"{said_by} is {name!r}, and there is no such program; name an executable hipcc")
            return found
    found = shutil.which(str(rocm)) or shutil.which("hipcc", path=environ.get("PATH"))
    if found is None:
        raise HipSetupError(
            f"no hipcc: install ROCm's HIP compiler, or name it (workload_config.hipcc, HIPCC); {rocm} is not there, "
            "and PATH has none"
        )
    return found


def require_device(kfd: Path, access: Callable[[Path, int], bool] = os.access) -> None:
    """Checks that this user may open the GPU driver.

    Args:
        kfd: The driver's device file.
        access: Says whether this user may use a file in a mode.

    Raises:
        HipSetupError: The device file is not there, or may not be read and written.
    """
    if not kfd.exists():
        raise HipSetupError(f"{kfd} is not there: no AMD GPU driver is loaded, or a container was not given the device")
    if not access(kfd, os.R_OK | os.W_OK):
        raise HipSetupError(
            f"{kfd} may not be read and written; add this user to the group that owns it (render, video)"
        )


def compile_program(
    hipcc: str, source: str, output: Path, *, flags: Sequence[str], env: Mapping[str, str], timeout_sec: float
) -> None:
    """Compiles one of the sources that ship.

    Args:
        hipcc: The compiler.
        source: File name in ``SOURCES``.
        output: The file to make.
        flags: Compiler and linker flags, such as ``--offload-arch=gfx942``.
        env: The compiler's whole environment.
        timeout_sec: Time limit in seconds.

    Raises:
        HipSetupError: The compiler failed, did not end in time, cannot be started, or made nothing.
    """
    # A linker that leaves out libraries nobody has asked for yet must see the program first.
    libraries = [flag for flag in flags if flag.startswith("-l")]
    others = [flag for flag in flags if flag not in libraries]
    command = [hipcc, *others, "-o", str(output), str(SOURCES / source), *libraries]
    try:
        done = run_tool(command, env=env, timeout_sec=timeout_sec)
    except OSError as error:
        raise HipSetupError(f"{hipcc} cannot be started: {error}") from error
    failure = done.failure(timeout_sec)
    if failure is None and not output.is_file():
        failure = "ended well and wrote nothing"
    if failure is not None:
        ending = "\n".join((done.stderr + done.stdout).strip().splitlines()[-_ENDING_LINES:])
        raise HipSetupError(f"compiling {source} failed: {' '.join(command)} {failure}\n{ending}".rstrip())


def compiler_environment(environ: Mapping[str, str], trial_env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the compiler: without what the cell puts before the program's own libraries.

    The cells of a matrix must run the same program; and a preload meant for the GPU's runtime has no business in a
    compiler.

    Args:
        environ: The trial's environment.
        trial_env: The variables that the cell controls.
    """
    loaders = {"LD_PRELOAD", *(name for name in trial_env if name.startswith("LD_"))}
    return {name: value for name, value in environ.items() if name not in loaders}
