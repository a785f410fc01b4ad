"""What ``hrx`` and ``hrx_perf`` share: their settings, a build folder, and how a program's end is read."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from aorta.hrx.preload import refuse_ignored, require_preloads
from aorta.hrx.toolchain import (
    KFD,
    HipSetupError,
    compile_program,
    compiler_environment,
    find_hipcc,
    require_device,
)
from aorta.instrumentation._tool import run_tool
from aorta.workloads.config import POSITIVE, ConfigBlock
from aorta.workloads.configured import ConfiguredWorkload

_PREFIX = "aorta "
_NO_DEVICE, _CALL_FAILED = 3, 4
"""Exit statuses of the programs (aorta/hrx/hip/report.h)."""


@dataclass(frozen=True, kw_only=True)
class HipProgramConfig(ConfigBlock):
    """Settings of a workload that compiles and runs a HIP program."""

    gpu_arch: str = "gfx942"
    """Target that hipcc compiles for, such as `gfx950`, or `native`."""
    hipcc: str | None = None
    """The compiler; if absent `$HIPCC`, then `/opt/rocm/bin/hipcc`, then the first on PATH."""
    build_dir: str | None = None
    """Folder in which each trial makes its own build folder; if absent the system's folder for temporary files."""
    keep_build: bool = False
    """Whether the build folder stays after the trial; its path is then the metric `build_dir`."""
    timeout_sec: float = field(default=120.0, metadata=POSITIVE)
    """Time limit of one run of the program, and of each compilation, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What a program reported.

    Attributes:
        values: Text by key, the last one where a key comes twice.
        step_times_ms: Wall time of each timed launch in milliseconds, until the device was done.
        failed_call: The HIP call that failed, with its error, or None.
    """

    values: Mapping[str, str]
    step_times_ms: tuple[float, ...]
    failed_call: str | None

    def metrics(self) -> dict[str, str | None]:
        """Returns what the program ran on: ``device_name``, and ``hip_runtime``, the library that answers HIP calls."""
        return {name: self.values.get(name) for name in ("device_name", "hip_runtime")}

    def whole_number(self, key: str) -> int:
        """Returns a value as a whole number.

        Raises:
            RuntimeError: The program did not report it.
        """
        text = self.values.get(key, "")
        try:
            return int(text)
        except ValueError:
            raise RuntimeError(f"the program ended well and its {key!r} is {text!r}, not a whole number") from None


P = TypeVar("P", bound=HipProgramConfig)


class HipWorkload(ConfiguredWorkload[P]):
    """A workload whose work is done by a HIP program in a process of its own.

    Args:
        config: The merged ``workload_config``.
        kfd: The GPU driver's device file.

    Attributes:
        programs: Source files to compile, each with the flags that it needs besides the target.
    """

    programs: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __init__(self, config: Mapping[str, Any], *, kfd: Path = KFD) -> None:
        super().__init__(config)
        self._kfd = kfd
        self._build: Path | None = None

    def setup(self) -> None:
        """Checks the device, the compiler and ``LD_PRELOAD``, and compiles the programs.

        Raises:
            HipSetupError: The compiler or the device is not there or not usable, or a program does not compile.
            PreloadError: ``LD_PRELOAD`` names a file that is not there.
        """
        require_preloads(os.environ.get("LD_PRELOAD", ""))
        hipcc = find_hipcc(self.settings.hipcc, os.environ)
        require_device(self._kfd)
        env = compiler_environment(os.environ, self.config.get("_aorta_trial_env") or {})
        self._build = self._make_build_folder()
        for source, flags in self.programs.items():
            compile_program(
                hipcc,
                source,
                self.built(source),
                flags=[f"--offload-arch={self.settings.gpu_arch}", *flags],
                env=env,
                timeout_sec=self.settings.timeout_sec,
            )

    def _make_build_folder(self) -> Path:
        parent = self.settings.build_dir
        try:
            if parent is not None:
                Path(parent).mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix="aorta-hip-", dir=parent)).absolute()
        except OSError as error:
            raise HipSetupError(
                f"workload_config.build_dir is {parent!r}, and no build folder can be made there: {error}"
            ) from error

    def built(self, source: str) -> Path:
        """Returns what a source file is compiled into.

        Raises:
            RuntimeError: There is no build folder yet.
        """
        if self._build is None:
            raise RuntimeError("run() needs setup() first")
        return self._build / Path(source).stem

    def execute(self, source: str, *arguments: str) -> Reported:
        """Runs a program with the trial's own environment, and reads its report.

        Its output also goes to the trial's own, where ``save_logs`` keeps it.

        Args:
            source: The source file that it was compiled from.
            *arguments: Its command line.

        Raises:
            PreloadError: The loader ran it without a library of ``LD_PRELOAD``.
            RuntimeError: It found no device, crashed, was started wrongly, or did not end in time.
        """
        limit_sec = self.settings.timeout_sec
        done = run_tool([str(self.built(source)), *arguments], env=os.environ, timeout_sec=limit_sec)
        print(done.stdout, end="", flush=True)
        print(done.stderr, end="", file=sys.stderr, flush=True)
        refuse_ignored(done.stderr)
        reported = _read(done.stdout)
        name = f"{Path(source).stem} {' '.join(arguments[:1])}"
        if done.returncode == _NO_DEVICE:
            runtime = reported.values.get("hip_runtime", "the HIP runtime")
            raise RuntimeError(f"{name}: no device to run on: {reported.values.get('no_device')} ({runtime})")
        failure = done.failure(limit_sec)
        if failure is not None and not (done.returncode == _CALL_FAILED and reported.failed_call is not None):
            raise RuntimeError(f"{name} {failure}")
        return reported

    def build_metrics(self) -> dict[str, str | None]:
        """Returns where the build folder is kept, or None where it is not."""
        return {"build_dir": str(self._build) if self.settings.keep_build else None}

    def cleanup(self) -> None:
        """Removes the build folder unless it is to be kept; also after a ``setup()`` that failed half-way."""
        if self._build is not None and not self.settings.keep_build:
            shutil.rmtree(self._build, ignore_errors=True)
        self._build = None


def _read(stdout: str) -> Reported:
    """Reads the lines ``aorta <key> <value>``; what the runtime itself writes is skipped."""
    values: dict[str, str] = {}
    step_times_ms = []
    for line in stdout.splitlines():
        if line.startswith(_PREFIX):
            key, _, value = line.removeprefix(_PREFIX).partition(" ")
            if key == "step_ms":
                step_times_ms.append(float(value))
            else:
                values[key] = value
    return Reported(values=values, step_times_ms=tuple(step_times_ms), failed_call=values.get("failed_call"))
