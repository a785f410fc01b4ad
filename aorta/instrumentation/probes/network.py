"""Block ``nics``: network interfaces and RDMA devices. No addresses are recorded."""

from __future__ import annotations

import array
import re
import socket
import struct

from aorta.instrumentation._system import Absent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aorta.instrumentation._system import Probe

_SIOCETHTOOL = 0x8946
_ETHTOOL_GDRVINFO = 0x3
# struct ethtool_drvinfo: cmd, driver, version, fw_version, bus_info, then 80 bytes that do not matter here.
_DRVINFO = struct.Struct("I32s32s32s32s")
_DRVINFO_BYTES = 196

_MODULES = ("bnxt_re", "gdrdrv", "ib_core", "ib_peer_mem", "ib_uverbs", "ionic", "ionic_rdma", "irdma", "mlx5_core")
_PEER_MODULES = ("mlx5_ib", "nvidia_peermem")


def nics(probe: Probe) -> dict[str, Any]:
    """Interfaces with driver, firmware and link state; RDMA devices with their ports; RDMA kernel modules."""
    interfaces = [_interface(probe, name) for name in probe.names("/sys/class/net") if name != "lo"]
    rdma = [_rdma_device(probe, name) for name in probe.names("/sys/class/infiniband")]
    if not rdma:
        probe.absent("rdma_devices", "no device under /sys/class/infiniband")
    if not interfaces and not rdma:
        raise Absent("no network interface but the loopback under /sys/class/net, and no RDMA device")
    loaded = {
        name: probe.read(f"/sys/module/{name}/version")
        for name in (*_MODULES, *_PEER_MODULES)
        if probe.is_dir(f"/sys/module/{name}")
    }
    return {"interfaces": interfaces, "rdma_devices": rdma, "rdma_modules": loaded}


def _interface(probe: Probe, name: str) -> dict[str, Any]:
    base = "/sys/class/net/" + name
    driver = probe.link_name(base + "/device/driver")
    version, firmware = (None, None)
    if driver is not None and probe.system.is_live:
        version, firmware = _driver_info(name)
    speed = probe.read_int(base + "/speed")
    return {
        "name": name,
        "driver": driver,
        "driver_version": version,
        "firmware": firmware,
        "state": probe.read(base + "/operstate"),
        "speed_mbps": speed if speed is not None and speed >= 0 else None,
        "mtu": probe.read_int(base + "/mtu"),
        **_pci(probe, base),
    }


def _pci(probe: Probe, base: str) -> dict[str, Any]:
    address = probe.link_name(base + "/device")
    numa_node = probe.read_int(base + "/device/numa_node")
    return {
        "pci_address": address if address and re.fullmatch(r"[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.\d", address) else None,
        "vendor_id": probe.read(base + "/device/vendor"),
        "device_id": probe.read(base + "/device/device"),
        "numa_node": numa_node if numa_node is not None and numa_node >= 0 else None,
    }


def _driver_info(name: str) -> tuple[str | None, str | None]:
    """Returns the driver's and the firmware's version, as ``ethtool -i`` would say, or None for each unknown."""
    import fcntl  # not on every platform that might read a recorded tree

    request = array.array("B", struct.pack("I", _ETHTOOL_GDRVINFO).ljust(_DRVINFO_BYTES, b"\0"))
    address, _ = request.buffer_info()
    ifreq = struct.pack("16sP", name.encode("utf-8", "surrogateescape")[:15], address).ljust(40, b"\0")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control.fileno(), _SIOCETHTOOL, ifreq)
    except OSError:  # not a driver that answers
        return None, None
    _, _, version, firmware, _ = _DRVINFO.unpack_from(request.tobytes())
    return _text(version), _text(firmware)


def _text(field: bytes) -> str | None:
    text = field.split(b"\0")[0].decode("utf-8", "backslashreplace").strip()
    return text if text and text != "N/A" else None


def _rdma_device(probe: Probe, name: str) -> dict[str, Any]:
    base = "/sys/class/infiniband/" + name
    return {
        "name": name,
        "driver": probe.link_name(base + "/device/driver"),
        "firmware": probe.read(base + "/fw_ver"),
        "hca_type": probe.read(base + "/hca_type"),
        "board_id": probe.read(base + "/board_id"),
        "interfaces": probe.names(base + "/device/net"),
        "ports": [_port(probe, f"{base}/ports/{port}", port) for port in probe.names(base + "/ports")],
        **_pci(probe, base),
    }


def _port(probe: Probe, base: str, number: str) -> dict[str, Any]:
    return {
        "port": number,
        "state": _word(probe.read(base + "/state")),
        "physical_state": _word(probe.read(base + "/phys_state")),
        "rate": probe.read(base + "/rate"),
        "link_layer": probe.read(base + "/link_layer"),
    }


def _word(text: str | None) -> str | None:
    """Returns the name in sysfs's ``4: ACTIVE``."""
    return None if text is None else text.split(":")[-1].strip()
