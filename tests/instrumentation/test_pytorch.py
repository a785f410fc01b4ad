"""Blocks pytorch, triton and fbgemm: read without importing, or imported where a crash does no harm."""

from __future__ import annotations

import pytest

from aorta.instrumentation._system import Absent
from aorta.instrumentation.probes.pytorch import fbgemm, pytorch, pytorch_static, triton
from tests.instrumentation.conftest import Machine

VERSION = """
from typing import Optional
__version__ = '2.9.0+rocm6.4'
debug = False
cuda: Optional[str] = None
git_version = '0fabc3ba44823f257e70ce397d989c8de5e362c1'
hip: Optional[str] = '6.4.43484'
"""


def fake_torch(machine: Machine, init: str) -> None:
    """Installs a package torch whose import runs ``init``."""
    machine.file("/site/torch/__init__.py", init)
    machine.file("/site/torch/version.py", VERSION)


def test_static_facts_need_no_import(machine: Machine) -> None:
    """Version, build and revision come from the file, even of a PyTorch that cannot be imported."""
    fake_torch(machine, "raise SystemExit('imported')")
    block = pytorch_static(machine.probe())
    assert (block["version"], block["build"], block["hip_version"]) == ("2.9.0+rocm6.4", "rocm", "6.4.43484")
    assert block["git_commit"].startswith("0fabc3ba")


@pytest.mark.parametrize(
    ("init", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("raise ImportError('libamdhip64.so.6: cannot open shared object file')", "cannot open shared object file"),
        ("import os; os._exit(0)", "it said nothing"),
    ],
)
def test_an_import_that_fails_leaves_the_static_facts(machine: Machine, init: str, reason: str) -> None:
    """A crash in the child is a reason in the parent."""
    fake_torch(machine, init)
    probe = machine.probe()
    block = pytorch(probe)
    assert (block["version"], block["flags"]) == ("2.9.0+rocm6.4", None)
    assert reason in probe.missing["flags"]


OLD_TORCH = """
print('noise on standard output')
class Anything: pass
backends, cuda = Anything(), Anything()
backends.cuda = Anything()
backends.cuda.flash_sdp_enabled = lambda: False
def get_float32_matmul_precision(): return 'high'
def are_deterministic_algorithms_enabled(): raise RuntimeError('broken\\nin two lines')
def get_num_threads(): return Anything
"""


def test_a_pytorch_that_lacks_or_refuses_an_answer_still_gives_the_others(machine: Machine) -> None:
    """One missing or raising function costs one field, with its reason; an odd value is told as text."""
    fake_torch(machine, OLD_TORCH)
    probe = machine.probe()
    block = pytorch(probe)
    assert (block["flags"]["float32_matmul_precision"], block["sdpa_backends"]["flash"]) == ("high", False)
    assert block["flags"]["deterministic_algorithms"] is None
    assert probe.missing["flags.deterministic_algorithms"] == "RuntimeError: broken"
    assert probe.missing["runtime.gpu_count"].startswith("AttributeError")
    assert block["flags"]["num_threads"] == "<class 'torch.Anything'>"
    assert probe.failures == []


def test_no_torch_is_absent(machine: Machine) -> None:
    """A folder that only has the name is no package."""
    machine.file("/site/torch/readme.txt")
    with pytest.raises(Absent, match="no package torch"):
        pytorch(machine.probe())


def test_triton_is_found_under_the_name_of_its_rocm_build(machine: Machine) -> None:
    """The distribution's name, version and revision are recorded."""
    machine.file("/site/triton/__init__.py")
    metadata = "Metadata-Version: 2.1\nName: pytorch-triton-rocm\nVersion: 3.5.0+gitaa11bb22\n"
    machine.file("/site/pytorch_triton_rocm-3.5.0+gitaa11bb22.dist-info/METADATA", metadata)
    block = triton(machine.probe())
    assert (block["distribution"], block["version"], block["git_commit"]) == (
        "pytorch-triton-rocm", "3.5.0+gitaa11bb22", "aa11bb22",
    )  # fmt: skip


def test_a_package_without_a_distribution_has_no_version(machine: Machine) -> None:
    """A source tree on the path is there, but of unknown version."""
    machine.file("/site/fbgemm_gpu/__init__.py")
    probe = machine.probe()
    assert fbgemm(probe)["version"] is None
    assert "belongs to no installed distribution" in probe.missing["version"]
