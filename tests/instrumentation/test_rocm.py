"""Blocks of the ROCm side, from a made-up installation, driver and device tree."""

from __future__ import annotations

import struct

import pytest

from aorta.instrumentation._system import Absent
from aorta.instrumentation.probes.libraries import aotriton, composable_kernel, hipblaslt, rccl, rocblas
from aorta.instrumentation.probes.rocm import amdgpu_driver, gfx_name, gpu_arch, hip, rocm
from tests.instrumentation.conftest import Machine


def elf_with_build_id(identity: bytes) -> bytes:
    """A minimal 64-bit ELF file with one note segment."""
    note = struct.pack("<III", 4, len(identity), 3) + b"GNU\0" + identity
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    return header + struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note), 4) + note


@pytest.fixture
def installed(machine: Machine) -> Machine:
    """A machine with ROCm 6.4 behind the usual link, and an older ROCm beside it."""
    machine.file("/opt/rocm-6.4.1/.info/version", "6.4.1-83\n")
    machine.file("/opt/rocm-6.2.0/.info/version", "6.2.0-66\n")
    machine.link("/opt/rocm", "rocm-6.4.1")
    return machine


def test_rocm_names_the_installation_in_use_first(installed: Machine) -> None:
    """The link and its target are one installation; the older one is listed after it."""
    block = rocm(installed.probe())
    assert (block["path"], block["real_path"], block["version"]) == ("/opt/rocm", "/opt/rocm-6.4.1", "6.4.1-83")
    assert [each["version"] for each in block["installations"]] == ["6.4.1-83", "6.2.0-66"]


def test_rocm_path_comes_first(installed: Machine) -> None:
    """The variable that tools follow decides."""
    installed.environ["ROCM_PATH"] = "/opt/rocm-6.2.0"
    assert rocm(installed.probe())["version"] == "6.2.0-66"


def test_an_installation_without_a_version_file_has_no_version(machine: Machine) -> None:
    """A folder's name is not taken for a version."""
    machine.file("/opt/rocm-6.4.1/bin/x")
    probe = machine.probe()
    assert rocm(probe)["version"] is None
    assert probe.missing == {"version": "no /opt/rocm-6.4.1/.info/version"}


def test_no_rocm_is_absent(machine: Machine) -> None:
    """Nothing is guessed without an installation."""
    with pytest.raises(Absent, match="no ROCm installation"):
        rocm(machine.probe())


def test_hip_reads_the_version_file(installed: Machine) -> None:
    """The file wins over running a tool."""
    text = "HIP_VERSION_MAJOR=6\nHIP_VERSION_MINOR=4\nHIP_VERSION_PATCH=43483\nHIP_VERSION_GITHASH=a187df25c\n"
    installed.file("/opt/rocm-6.4.1/share/hip/version", text)
    installed.file("/opt/rocm-6.4.1/lib/llvm/lib/clang/19/x")
    installed.file("/opt/rocm-6.4.1/lib/llvm/lib/clang/9.0.1/x")
    block = hip(installed.probe())
    assert (block["version"], block["git_commit"], block["clang_version"]) == ("6.4.43483", "a187df25c", "19")


def test_hip_asks_hipconfig_without_a_version_file(installed: Machine) -> None:
    """The tool's answer is taken apart and named as the source."""
    installed.tool("hipconfig", "echo 6.4.43483-a187df25c")
    block = hip(installed.probe())
    assert (block["version"], block["git_commit"], block["version_source"]) == ("6.4.43483", "a187df25c", "hipconfig")


def test_a_hipconfig_that_talks_nonsense_gives_no_version(installed: Machine) -> None:
    """Hostile output is no version."""
    installed.tool("hipconfig", r"printf '\377\000garbage'; exit 0")
    assert hip(installed.probe())["version"] is None


def test_the_driver_block_reads_devices_and_firmware(machine: Machine) -> None:
    """AMD cards only, in order of number, with what sysfs shows of each."""
    machine.files(
        {
            "/sys/module/amdgpu/version": "6.12.12\n",
            "/sys/module/amdgpu/parameters/noretry": "-1\n",
            "/dev/kfd": "",
        }
    )
    for card, vendor in ((0, "0x1a03"), (1, "0x1002"), (10, "0x1002"), (2, "0x1002")):
        device = f"/sys/devices/pci0000:00/0000:{card:02x}:00.0"
        machine.files(
            {
                device + "/vendor": vendor,
                device + "/device": "0x74a1",
                device + "/mem_info_vram_total": "206141652992",
                device + "/current_compute_partition": "SPX",
                device + "/fw_version/mec_fw_version": "0x000000a8",
            }
        )
        machine.link(f"/sys/class/drm/card{card}/device", f"../../../devices/pci0000:00/0000:{card:02x}:00.0")
    block = amdgpu_driver(machine.probe())
    assert [device["card"] for device in block["devices"]] == ["card1", "card2", "card10"]
    first = block["devices"][0]
    assert (first["pci_address"], first["firmware"]) == ("0000:01:00.0", {"mec": "0x000000a8"})
    assert (first["vram_total_bytes"], first["compute_partition"]) == (206141652992, "SPX")
    assert (block["version"], block["parameters"], block["kfd_present"]) == ("6.12.12", {"noretry": "-1"}, True)


def test_a_driver_that_came_with_the_kernel_has_no_version(machine: Machine) -> None:
    """The kernel's own driver shows none, and that is said."""
    machine.file("/sys/module/amdgpu/srcversion", "ABC")
    probe = machine.probe()
    assert amdgpu_driver(probe)["version"] is None
    assert "kernel's own" in probe.missing["version"]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (90402, "gfx942"),
        (90010, "gfx90a"),
        (90500, "gfx950"),
        (100300, "gfx1030"),
        (110001, "gfx1101"),
        (90012, "gfx90c"),
    ],
)
def test_target_versions_are_named(target: int, name: str) -> None:
    """Minor and stepping are hexadecimal digits."""
    assert gfx_name(target) == name


def test_gpu_arch_skips_processors_and_asks_rocminfo(machine: Machine) -> None:
    """Devices come from the topology, full target names from the runtime."""
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    machine.file(f"{nodes}/0/properties", "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n")
    machine.file(f"{nodes}/1/properties", "simd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\nunique_id 77\n")
    machine.tool("rocminfo", "echo '  Name: amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-'; echo '  Name: gfx942'")
    block = gpu_arch(machine.probe())
    assert [(device["node"], device["compute_units"]) for device in block["devices"]] == [(1, 304)]
    assert (block["archs"], block["isas"]) == (["gfx942"], ["gfx942:sramecc+:xnack-"])


def test_a_crashing_rocminfo_is_a_failure_and_not_an_answer(machine: Machine) -> None:
    """The topology still tells; the tool's crash makes the snapshot partial."""
    machine.file("/sys/class/kfd/kfd/topology/nodes/1/properties", "gfx_target_version 90402\n")
    machine.tool("rocminfo", "echo amdgcn-amd-amdhsa--gfx90a; kill -ABRT $$")
    probe = machine.probe()
    block = gpu_arch(probe)
    assert (block["archs"], block["isas"]) == (["gfx942"], [])
    assert probe.failures[0].startswith("rocminfo was ended by SIGABRT")


def test_every_copy_of_a_library_is_recorded_once(installed: Machine) -> None:
    """Links to one file are one copy; PyTorch's own copy is another, told apart by its build id."""
    installed.file("/opt/rocm-6.4.1/lib/librccl.so.1.0.60401", elf_with_build_id(b"\x01\x02"))
    installed.link("/opt/rocm-6.4.1/lib/librccl.so.1", "librccl.so.1.0.60401")
    installed.link("/opt/rocm-6.4.1/lib/librccl.so", "librccl.so.1")
    installed.file(
        "/opt/rocm-6.4.1/include/rccl/rccl.h", "#define NCCL_MAJOR 2\n#define NCCL_MINOR 22\n#define NCCL_PATCH 3\n"
    )
    installed.file("/site/torch/__init__.py")
    installed.file("/site/torch/lib/librccl.so", elf_with_build_id(b"\x03\x04"))
    installed.file("/site/torch/lib/librccl-net.so", b"not an ELF file")
    block = rccl(installed.probe())
    assert [(copy["origin"], copy["build_id"]) for copy in block["copies"]] == [("rocm", "0102"), ("torch", "0304")]
    assert (block["version"], block["copies"][0]["file_version"]) == ("2.22.3", "1.0.60401")
    assert [plugin["build_id"] for plugin in block["plugins"]] == [None]


@pytest.mark.parametrize(
    "damage", [b"", b"\x7fELF\x02\x01", elf_with_build_id(b"\x01\x02")[:130], b"\x7fELF\x02\x01" + b"\xff" * 300]
)
def test_a_damaged_library_has_no_build_id(installed: Machine, damage: bytes) -> None:
    """A truncated or hostile ELF file neither raises nor yields half an identity."""
    installed.file("/opt/rocm-6.4.1/lib/librccl.so", damage)
    probe = installed.probe()
    assert rccl(probe)["copies"][0]["build_id"] is None
    assert probe.failures == []


def test_library_versions_come_from_headers(installed: Machine) -> None:
    """The header names the version and the source revision."""
    defines = "#define {0}_MAJOR 4\n#define {0}_MINOR 4\n#define {0}_PATCH 1\n#define {0}_TWEAK 9d5b7fae\n"
    include = "/opt/rocm-6.4.1/include/"
    installed.file(include + "rocblas/internal/rocblas-version.h", defines.format("ROCBLAS_VERSION"))
    installed.file(include + "hipblaslt/hipblaslt-version.h", defines.format("HIPBLASLT_VERSION"))
    for function in (rocblas, hipblaslt):
        block = function(installed.probe())
        assert (block["version"], block["git_commit"], block["copies"]) == ("4.4.1", "9d5b7fae", [])


def test_a_version_may_come_from_cmake(installed: Machine) -> None:
    """A header library without version macros is known by its package file."""
    path = "/opt/rocm-6.4.1/lib/cmake/composable_kernel/composable_kernelConfigVersion.cmake"
    installed.file(path, 'set(PACKAGE_VERSION "1.1.0")\n')
    block = composable_kernel(installed.probe())
    assert (block["version"], block["version_source"]) == ("1.1.0", path.replace("rocm-6.4.1", "rocm"))


def test_copies_of_different_versions_have_no_common_version(installed: Machine) -> None:
    """Two AOTritons are two, and neither is called the version."""
    installed.file("/opt/rocm-6.4.1/lib/libaotriton_v2.so.0.9.2")
    installed.file("/site/torch/__init__.py")
    installed.file("/site/torch/lib/libaotriton_v2.so.0.10.0")
    installed.file("/site/torch/lib/aotriton.images/amd-gfx942/x")
    probe = installed.probe()
    block = aotriton(probe)
    assert (block["version"], probe.missing["version"]) == (None, "copies differ: 0.10.0, 0.9.2")
    assert [image["files"] for image in block["images"]] == [1]
