"""Blocks nvidia and nics."""

from __future__ import annotations

import pytest

from aorta.instrumentation._system import Absent
from aorta.instrumentation.probes.network import nics
from aorta.instrumentation.probes.nvidia import nvidia
from tests.instrumentation.conftest import Machine

H200 = (
    "0, NVIDIA H200, GPU-1234, 00000000:18:00.0, 570.86.15, 96.00.9F.00.01, 143771, 9.0, "
    "Enabled, Disabled, Enabled, 700.00"
)
KERNEL = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n"


def test_nvidia_reads_driver_devices_and_toolkit(machine: Machine) -> None:
    """Each comes from its own source."""
    machine.file("/proc/driver/nvidia/version", KERNEL)
    machine.file("/usr/local/cuda/version.json", '{"cuda": {"version": "12.8.0"}}')
    machine.tool("nvidia-smi", f'case "$1" in -L) echo "GPU 0: NVIDIA H200 (UUID: GPU-1234)";; *) echo "{H200}";; esac')
    block = nvidia(machine.probe())
    assert (block["driver_version"], block["open_kernel_module"]) == ("570.86.15", True)
    assert block["devices"][0]["index"] == 0
    assert (block["devices"][0]["name"], block["devices"][0]["compute_cap"]) == ("NVIDIA H200", "9.0")
    assert block["listing"] == ["GPU 0: NVIDIA H200 (UUID: GPU-1234)"]
    assert block["toolkit"] == {"path": "/usr/local/cuda", "version": "12.8.0"}


def test_an_old_nvidia_smi_is_asked_for_less(machine: Machine) -> None:
    """A refused field name costs that field only, and is no failure."""
    old = "0, Tesla V100, GPU-1, 0000:18:00.0, 418.87, 88.00, [N/A]"
    machine.tool(
        "nvidia-smi", f'case "$*" in *compute_cap*) echo bad field >&2; exit 2;; -L) ;; *) echo "{old}";; esac'
    )
    probe = machine.probe()
    device = nvidia(probe)["devices"][0]
    assert (device["name"], device["compute_cap"], device["memory_total"]) == ("Tesla V100", None, None)
    assert probe.failures == []


def test_a_broken_driver_makes_the_snapshot_partial(machine: Machine) -> None:
    """nvidia-smi's own complaint is the reason for the missing devices."""
    machine.tool("nvidia-smi", "echo 'NVIDIA-SMI has failed: no driver'; exit 9")
    probe = machine.probe()
    assert nvidia(probe)["devices"] == []
    assert probe.missing["devices"] == "nvidia-smi exited with 9: NVIDIA-SMI has failed: no driver"
    assert probe.failures == [probe.missing["devices"]]


def test_the_toolkit_version_may_come_from_its_header(machine: Machine) -> None:
    """An installation from wheels or a distribution has no version.json."""
    machine.file("/usr/local/cuda/include/cuda.h", "#define CUDA_VERSION 13010\n")
    assert nvidia(machine.probe())["toolkit"] == {"path": "/usr/local/cuda", "version": "13.1"}


def test_no_nvidia_is_absent(machine: Machine) -> None:
    """Without driver, tool and toolkit there is no block."""
    with pytest.raises(Absent, match="no NVIDIA driver"):
        nvidia(machine.probe())


def test_rdma_devices_and_their_interfaces(machine: Machine) -> None:
    """Driver, firmware and link state come from sysfs; the loopback is left out."""
    device = "/sys/devices/pci0000:00/0000:06:00.0"
    machine.files(
        {
            "/sys/class/net/lo/operstate": "unknown",
            "/sys/class/net/eth2/operstate": "up\n",
            "/sys/class/net/eth2/speed": "400000\n",
            "/sys/class/net/eth2/mtu": "9000\n",
            device + "/vendor": "0x1dd8\n",
            device + "/device": "0x1002\n",
            device + "/numa_node": "1\n",
            device + "/net/eth2/x": "",
            "/sys/class/infiniband/ionic_0/fw_ver": "1.117.1\n",
            "/sys/class/infiniband/ionic_0/ports/1/state": "4: ACTIVE\n",
            "/sys/class/infiniband/ionic_0/ports/1/link_layer": "Ethernet\n",
            "/sys/module/ionic_rdma/version": "25.6\n",
            "/sys/module/ib_core/refcnt": "1\n",
        }
    )
    machine.link(device + "/driver", "../../../bus/pci/drivers/ionic")
    for owner in ("net/eth2", "infiniband/ionic_0"):
        machine.link(f"/sys/class/{owner}/device", "../../../devices/pci0000:00/0000:06:00.0")
    block = nics(machine.probe())
    (interface,), (rdma,) = block["interfaces"], block["rdma_devices"]
    assert (interface["name"], interface["driver"], interface["speed_mbps"]) == ("eth2", "ionic", 400000)
    assert (interface["pci_address"], interface["numa_node"]) == ("0000:06:00.0", 1)
    assert (rdma["firmware"], rdma["interfaces"], rdma["ports"][0]["state"]) == ("1.117.1", ["eth2"], "ACTIVE")
    assert block["rdma_modules"] == {"ionic_rdma": "25.6", "ib_core": None}


def test_a_link_that_is_down_has_no_speed(machine: Machine) -> None:
    """sysfs writes -1, which is not a speed."""
    machine.file("/sys/class/net/eth0/speed", "-1\n")
    assert nics(machine.probe())["interfaces"][0]["speed_mbps"] is None


def test_no_interface_is_absent(machine: Machine) -> None:
    """The loopback alone is no network."""
    machine.file("/sys/class/net/lo/operstate", "unknown")
    with pytest.raises(Absent, match="no network interface"):
        nics(machine.probe())
