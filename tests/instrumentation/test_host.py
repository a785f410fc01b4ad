"""Blocks host, runtime_context, python and env_vars."""

from __future__ import annotations

import pytest

from aorta.instrumentation.probes.env_vars import NAMES, env_vars
from aorta.instrumentation.probes.host import host, python, runtime_context
from tests.instrumentation.conftest import Machine


def test_host_reads_kernel_processor_and_memory(machine: Machine) -> None:
    """The numbers come from the machine's own files."""
    processor = "processor : {}\nphysical id : {}\nmodel name : EPYC 9654\nflags : fpu avx512f hypervisor\n\n"
    machine.files(
        {
            "/proc/sys/kernel/hostname": "node07\n",
            "/proc/sys/kernel/osrelease": "6.8.0-rocm\n",
            "/proc/cpuinfo": "".join(processor.format(i, i // 2) for i in range(4)),
            "/proc/meminfo": "MemTotal: 1024 kB\nSwapTotal: 0 kB\nHugePages_Total: 3\n",
            "/proc/cmdline": "root=UUID=1 iommu=pt amdgpu.noretry=0 password=hunter2",
            "/etc/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04 LTS"\n',
            "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        }
    )
    block = host(machine.probe())
    assert (block["hostname"], block["kernel"], block["hypervisor"]) == ("node07", "6.8.0-rocm", True)
    assert (block["cpu"]["logical"], block["cpu"]["sockets"], block["cpu"]["isa"]) == (4, 2, ["avx512f"])
    assert (block["memory"]["total_bytes"], block["memory"]["hugepages_total"]) == (1 << 20, 3)
    assert (block["os"]["id"], block["transparent_hugepages"]) == ("ubuntu", "madvise")


def test_host_keeps_only_boot_parameters_that_matter(machine: Machine) -> None:
    """Disks, hosts and secrets on the kernel's command line stay out."""
    machine.file("/proc/cmdline", "root=UUID=1 iommu=pt amdgpu.noretry=0 password=hunter2")
    assert host(machine.probe())["boot_parameters"] == ["iommu=pt", "amdgpu.noretry=0"]


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, "baremetal"),
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/proc/1/cgroup": "0::/docker/" + "a" * 64}, {}, "docker"),
        ({"/run/.containerenv": 'image="acme/box:2"\n', "/.dockerenv": ""}, {}, "podman"),
        ({"/.singularity.d/runscript": "", "/.dockerenv": ""}, {}, "singularity"),
        ({}, {"APPTAINER_NAME": "box.sif"}, "singularity"),
        ({"/proc/1/cgroup": "0::/kubepods/besteffort/pod1"}, {}, "other"),
    ],
)
def test_the_container_engine_is_recognised(
    machine: Machine, files: dict[str, str], environ: dict[str, str], expected: str
) -> None:
    """The most specific mark wins; none means bare metal; an unknown engine is not called one of the known."""
    machine.files(files)
    machine.environ.update(environ)
    block = runtime_context(machine.probe())
    assert block["container"] == expected
    assert bool(block["container_evidence"]) == (expected != "baremetal")


def test_podman_tells_the_image(machine: Machine) -> None:
    """The image reference is recorded where the engine writes it."""
    machine.file("/run/.containerenv", 'engine="podman-5"\nimage="acme/box:2"\nid="abc"\n')
    assert runtime_context(machine.probe())["container_image"] == "acme/box:2"


def test_packages_come_from_folder_names(machine: Machine) -> None:
    """Distributions are listed under their normal names, the first on the path winning."""
    machine.file("/site/Flash_Attn-2.7.0.dist-info/METADATA")
    machine.file("/site/readme.txt")
    assert python(machine.probe())["packages"] == {"flash-attn": "2.7.0"}


def test_the_list_of_variables_is_about_130_distinct_names() -> None:
    """The fixed list keeps its size and repeats nothing."""
    assert 120 <= len(NAMES) <= 150
    assert len(set(NAMES)) == len(NAMES)


def test_only_listed_variables_carry_values(machine: Machine) -> None:
    """A secret in the environment stays out, and an unknown relative is known by name alone."""
    machine.environ.update(
        {"HSA_XNACK": "1", "NCCL_BRAND_NEW": "x", "HF_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "secret"}
    )
    block = env_vars(machine.probe())
    assert (block["set"], block["unlisted"]) == ({"HSA_XNACK": "1"}, ["NCCL_BRAND_NEW"])


def test_an_empty_value_is_a_value(machine: Machine) -> None:
    """Set to nothing and not set are different."""
    machine.environ["LD_PRELOAD"] = ""
    assert env_vars(machine.probe())["set"] == {"LD_PRELOAD": ""}


def test_every_built_in_mitigation_is_listed() -> None:
    """What a recipe can switch, a snapshot must show."""
    from aorta.registry import load_registry

    used = {
        name
        for mitigation in load_registry().mitigations.values()
        if mitigation.source_package == "aorta"
        for name in mitigation.env
    }
    assert used - set(NAMES) == set()
