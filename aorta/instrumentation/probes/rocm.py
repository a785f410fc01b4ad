"""Blocks ``rocm``, ``hip``, ``amdgpu_driver`` and ``gpu_arch``."""

from __future__ import annotations

import os
import re

from aorta.instrumentation._system import Absent, parse_int, parse_key_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aorta.instrumentation._system import Probe

_AMD = "0x1002"


def rocm_roots(probe: Probe) -> list[str]:
    """Returns the ROCm installations of the machine, the one that tools would use first, each once."""
    named = [probe.environ.get(key, "") for key in ("ROCM_PATH", "ROCM_HOME")]
    versioned = ["/opt/" + name for name in probe.names("/opt") if re.fullmatch(r"rocm-.+", name)]
    roots: list[str] = []
    seen: set[str] = set()
    for root in [*named, "/opt/rocm", *versioned]:
        if root.startswith("/") and probe.is_dir(root) and probe.real(root) not in seen:
            seen.add(probe.real(root))
            roots.append(root)
    return roots


def rocm_root(probe: Probe) -> str:
    """Returns the ROCm installation in use.

    Raises:
        Absent: There is none.
    """
    roots = rocm_roots(probe)
    if not roots:
        raise Absent("no ROCm installation: neither $ROCM_PATH nor /opt/rocm* is a folder")
    return roots[0]


def rocm(probe: Probe) -> dict[str, Any]:
    """The ROCm installation: where it is, its version, and its neighbours."""
    root = rocm_root(probe)
    version = probe.read(root + "/.info/version")
    if version is None:
        probe.absent("version", f"no {root}/.info/version")
    return {
        "path": root,
        "real_path": probe.real(root),
        "version": version,
        "installations": [{"path": path, "version": probe.read(path + "/.info/version")} for path in rocm_roots(probe)],
    }


def hip(probe: Probe) -> dict[str, Any]:
    """The HIP runtime and compiler."""
    root = rocm_root(probe)
    numbers = parse_key_values(
        probe.read(root + "/share/hip/version") or probe.read(root + "/bin/.hipVersion") or "", "="
    )
    parts = [numbers.get("HIP_VERSION_" + part) for part in ("MAJOR", "MINOR", "PATCH")]
    version = ".".join(part for part in parts if part) if all(parts) else None
    commit = numbers.get("HIP_VERSION_GITHASH")
    source = "version file" if version else None
    hipconfig = probe.tool("hipconfig", [root + "/bin"])
    if version is None and hipconfig is not None:
        said = (probe.run([hipconfig, "--version"]) or "").strip()
        match = re.match(r"(\d+\.\d+\.\d+)(?:-([0-9a-f]{6,40}))?", said)
        if match:
            version, commit, source = match.group(1), match.group(2), "hipconfig"
    if version is None:
        probe.absent("version", f"no {root}/share/hip/version, and hipconfig did not say")
    hipcc = probe.environ.get("HIPCC") or probe.tool("hipcc", [root + "/bin"])
    if hipcc is None:
        probe.absent("hipcc", "not on PATH and not in " + root + "/bin")
    return {
        "version": version,
        "version_source": source,
        "git_commit": commit,
        "hipcc": hipcc,
        "clang_version": _clang_version(probe, root),
    }


def _clang_version(probe: Probe, root: str) -> str | None:
    """Returns the version in the compiler's resource folder, which needs no run of the compiler."""
    versions = [name for name in probe.names(root + "/lib/llvm/lib/clang") if name[:1].isdigit()]
    if not versions:
        probe.absent("clang_version", f"no folder in {root}/lib/llvm/lib/clang")
        return None
    return max(versions, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def amdgpu_driver(probe: Probe) -> dict[str, Any]:
    """The kernel driver, its parameters, and the state and firmware of each AMD device, from sysfs."""
    module = "/sys/module/amdgpu"
    if not probe.is_dir(module):
        raise Absent("the amdgpu kernel module is not loaded (no /sys/module/amdgpu)")
    version = probe.read(module + "/version")
    if version is None:
        probe.absent("version", "the driver is the kernel's own, which has no version but the kernel's")
    parameters: dict[str, str] = {}
    for name in probe.names(module + "/parameters"):
        value = probe.read(f"{module}/parameters/{name}", limit=4096, optional=True)  # some are root's alone
        if value is not None:
            parameters[name] = value
    kfd = probe.system.path("/dev/kfd")
    return {
        "version": version,
        "source_version": probe.read(module + "/srcversion"),
        "parameters": parameters,
        "kfd_present": os.path.exists(kfd),
        "kfd_usable": os.access(kfd, os.R_OK | os.W_OK),
        "devices": [
            _drm_device(probe, card)
            for card in sorted(probe.names("/sys/class/drm"), key=lambda name: (len(name), name))
            if re.fullmatch(r"card\d+", card) and probe.read(f"/sys/class/drm/{card}/device/vendor") == _AMD
        ],
    }


def _drm_device(probe: Probe, card: str) -> dict[str, Any]:
    base = f"/sys/class/drm/{card}/device"

    def text(name: str) -> str | None:
        return probe.read(f"{base}/{name}", optional=True)

    firmware = {
        name[: -len("_fw_version")]: version
        for name in probe.names(base + "/fw_version")
        if name.endswith("_fw_version")
        for version in [text("fw_version/" + name)]
        if version is not None
    }
    return {
        "card": card,
        "pci_address": probe.link_name(f"/sys/class/drm/{card}/device"),
        "device_id": text("device"),
        "revision": text("revision"),
        "vbios": text("vbios_version"),
        "unique_id": text("unique_id"),
        "vram_total_bytes": probe.read_int(base + "/mem_info_vram_total", optional=True),
        "numa_node": probe.read_int(base + "/numa_node", optional=True),
        "pcie_link_speed": text("current_link_speed"),
        "pcie_link_width": text("current_link_width"),
        "compute_partition": text("current_compute_partition"),
        "memory_partition": text("current_memory_partition"),
        "performance_level": text("power_dpm_force_performance_level"),
        "firmware": firmware,
    }


def gpu_arch(probe: Probe) -> dict[str, Any]:
    """The instruction sets of the AMD devices that the compute driver shows."""
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    devices = []
    for node in sorted(probe.names(nodes), key=lambda name: (len(name), name)):
        properties = parse_key_values(probe.read(f"{nodes}/{node}/properties", optional=True) or "", " ")
        target = parse_int(properties.get("gfx_target_version", "0")) or 0
        if target == 0:  # a processor
            continue
        simds = parse_int(properties.get("simd_count", ""))
        per_cu = parse_int(properties.get("simd_per_cu", "")) or 0
        devices.append(
            {
                "node": parse_int(node),
                "arch": gfx_name(target),
                "gfx_target_version": target,
                "compute_units": simds // per_cu if simds is not None and per_cu > 0 else None,
                "max_clock_mhz": parse_int(properties.get("max_engine_clk_fcompute", "")),
                "device_id": parse_int(properties.get("device_id", "")),
                "unique_id": properties.get("unique_id"),
            }
        )
    if not devices and not probe.exists("/dev/kfd"):
        raise Absent("no AMD compute device: no /dev/kfd and no device under " + nodes)
    isas = _isas(probe)
    return {"devices": devices, "archs": sorted({str(device["arch"]) for device in devices}), "isas": isas}


def gfx_name(target: int) -> str:
    """Returns the name of a ``gfx_target_version``: 90402 is gfx942, 90010 is gfx90a (the last two are hexadecimal)."""
    return f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}"


def _isas(probe: Probe) -> list[str]:
    """Returns full target names such as ``gfx942:sramecc+:xnack-``, which only the runtime knows."""
    rocminfo = probe.tool("rocminfo", ["/opt/rocm/bin"])
    if rocminfo is None:
        probe.absent("isas", "rocminfo is not on PATH and not in /opt/rocm/bin")
        return []
    said = probe.run([rocminfo], timeout_sec=8.0) or ""
    found = re.findall(r"amdgcn-amd-amdhsa--(gfx[0-9a-f]+(?::[a-z]+[+-])*)(?=\s|$)", said)
    if not found:
        probe.absent("isas", "rocminfo named none")
    return sorted(set(found))
