"""Where the compiler is looked for, what the device must allow, and what becomes of LD_PRELOAD."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from aorta.hrx.preload import PreloadError, refuse_ignored, require_preloads
from aorta.hrx.toolchain import (
    ROCM_HIPCC,
    SOURCES,
    HipSetupError,
    compile_program,
    compiler_environment,
    find_hipcc,
    require_device,
)
from aorta.hrx.workload import HipWorkload
from aorta.workloads.hrx import HrxWorkload
from aorta.workloads.hrx_perf import HrxPerfWorkload


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """Executables of several names, by folder."""
    made = {}
    for place in ("named", "variable", "rocm", "path"):
        program = tmp_path / place / "hipcc"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n", "utf-8")
        program.chmod(0o755)
        made[place] = str(program)
    return made


@pytest.mark.parametrize("missing", range(4))
def test_the_compiler_is_the_first_of_four(programs: dict[str, str], missing: int) -> None:
    """The configured one, $HIPCC, ROCm's, PATH: each is taken when those before it are absent."""
    there = list(programs)[missing:]
    found = find_hipcc(
        programs["named"] if "named" in there else None,
        {
            "PATH": str(Path(programs["path"]).parent),
            **({"HIPCC": programs["variable"]} if "variable" in there else {}),
        },
        rocm=Path(programs["rocm"] if "rocm" in there else "/nowhere/hipcc"),
    )
    assert found == programs[there[0]]


@pytest.mark.parametrize(
    ("configured", "environ", "words"),
    [
        ("/nowhere/hipcc", {"HIPCC": "/bin/sh"}, "workload_config.hipcc is '/nowhere/hipcc', and there is no such"),
        (None, {"HIPCC": "/nowhere/hipcc"}, "the variable HIPCC is '/nowhere/hipcc', and there is no such program"),
        (None, {"PATH": "/nowhere"}, "no hipcc: install ROCm's HIP compiler, or name it"),
    ],
)
def test_a_missing_compiler_is_named(configured: str | None, environ: dict[str, str], words: str) -> None:
    """A compiler that was named is not replaced by another."""
    with pytest.raises(HipSetupError, match=words):
        find_hipcc(configured, environ, rocm=Path("/nowhere/rocm"))


def test_a_machine_without_the_driver_is_told_so() -> None:
    """No device file, no trial."""
    with pytest.raises(HipSetupError, match="/nowhere/kfd is not there"):
        require_device(Path("/nowhere/kfd"))


@pytest.mark.parametrize("rights", [0, os.R_OK, os.W_OK])
def test_a_user_without_rights_is_told_so(kfd: Path, rights: int) -> None:
    """Reading alone is not enough, nor writing."""
    with pytest.raises(HipSetupError, match="may not be read and written; add this user"):
        require_device(kfd, access=lambda path, mode: path == kfd and mode & rights == mode)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'x.hip:3: error: no' >&2; exit 1", "exited with 1: x.hip:3: error: no\nx.hip:3: error: no"),
        ("exit 0", "ended well and wrote nothing"),
        ("exec sleep 60", "did not end within 0.2 s"),
    ],
)
def test_a_failed_compilation_shows_what_the_compiler_said(tmp_path: Path, script: str, words: str) -> None:
    """The command and the end of its output are in the error."""
    compiler = tmp_path / "hipcc"
    compiler.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    compiler.chmod(0o755)
    with pytest.raises(HipSetupError) as caught:
        compile_program(
            str(compiler), "perf.hip", tmp_path / "perf", flags=["-ldl", "-O2"], env=dict(os.environ), timeout_sec=0.2
        )
    assert f"{compiler} -O2 -o {tmp_path}/perf {SOURCES}/perf.hip -ldl" in str(caught.value)
    assert words in str(caught.value)


def test_all_cells_are_compiled_alike() -> None:
    """The compiler does not see the preload, nor the libraries that the cell puts first; the rest stays."""
    environ = {"LD_PRELOAD": "/a.so", "LD_LIBRARY_PATH": "/hrx", "HRX_GPU_DRIVER": "amdgpu", "PATH": "/bin"}
    assert compiler_environment(environ, {"LD_LIBRARY_PATH": "/hrx", "HRX_GPU_DRIVER": "amdgpu"}) == {
        "HRX_GPU_DRIVER": "amdgpu",
        "PATH": "/bin",
    }
    assert compiler_environment(environ, {})["LD_LIBRARY_PATH"] == "/hrx"


@pytest.mark.parametrize("separator", [":", " ", " : "])
def test_a_preload_that_is_not_there_is_refused(kfd: Path, separator: str) -> None:
    """Each path of the list is looked at; names without a slash are the loader's to find."""
    require_preloads(separator.join([str(kfd), "libm.so.6", "/opt/$LIB/a.so"]))
    require_preloads("")
    with pytest.raises(PreloadError, match=r"LD_PRELOAD names '/nowhere/libhrx.so'"):
        require_preloads(separator.join([str(kfd), "/nowhere/libhrx.so"]))


def test_the_loader_s_word_is_understood() -> None:
    """Its message is found between other lines; a program that only speaks of preloads is no reason."""
    refuse_ignored("note: object 'x' was preloaded\n")
    line = (
        "ERROR: ld.so: object '/opt/hrx/lib/libhrx.so' from LD_PRELOAD cannot be preloaded "
        "(wrong ELF class: ELFCLASS32): ignored."
    )
    with pytest.raises(PreloadError, match=r"ignored '/opt/hrx/lib/libhrx.so' of LD_PRELOAD.*wrong ELF class"):
        refuse_ignored(f"hello\n{line}\nbye\n")


@pytest.mark.skipif(
    shutil.which(os.environ.get("HIPCC") or "hipcc") is None and not ROCM_HIPCC.exists(), reason="needs hipcc"
)
@pytest.mark.parametrize("workload", [HrxWorkload, HrxPerfWorkload])
def test_the_real_compiler_takes_the_sources(workload: type[HipWorkload], tmp_path: Path) -> None:
    """Each program is compiled with its own flags, for a target that every ROCm since 5 knows; no device is needed."""
    hipcc = find_hipcc(None, os.environ)
    for source, flags in workload.programs.items():
        output = tmp_path / source
        target = ["--offload-arch=gfx90a", *flags]
        compile_program(hipcc, source, output, flags=target, env=dict(os.environ), timeout_sec=300)
        assert output.stat().st_size > 0
