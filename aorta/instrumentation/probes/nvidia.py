"""Block ``nvidia``: driver, devices and toolkit of the CUDA side."""

from __future__ import annotations

import csv
import io
import json
import re

from aorta.instrumentation._system import Absent, parse_int

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aorta.instrumentation._system import Probe

# nvidia-smi refuses the whole query for one name that it does not know, so the second list is what old drivers know.
_QUERIES = (
    "index,name,uuid,pci.bus_id,driver_version,vbios_version,memory.total,compute_cap,"
    "ecc.mode.current,mig.mode.current,persistence_mode,power.limit",
    "index,name,uuid,pci.bus_id,driver_version,vbios_version,memory.total",
)
_NOT_SAID = ("", "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "[GPU is lost]")


def nvidia(probe: Probe) -> dict[str, Any]:
    """Kernel driver from /proc and /sys, devices from nvidia-smi, toolkit from its own version file or header."""
    kernel = probe.read("/proc/driver/nvidia/version")
    driver = probe.read("/sys/module/nvidia/version")
    match = re.search(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d[\w.]*)", kernel or "")
    driver = driver or (match.group(1) if match else None)
    smi = probe.tool("nvidia-smi")
    toolkit = _toolkit(probe)
    if driver is None and smi is None and toolkit is None:
        raise Absent("no NVIDIA driver (no /proc/driver/nvidia), no nvidia-smi on PATH, and no CUDA toolkit")
    if driver is None:
        probe.absent("driver_version", "the kernel module is not loaded: no /proc/driver/nvidia, no /sys/module/nvidia")
    devices: list[dict[str, Any]] = []
    listing: list[str] = []
    if smi is None:
        probe.absent("devices", "nvidia-smi is not on PATH")
    else:
        devices = _devices(probe, smi)
        listing = [
            line.strip() for line in (probe.run([smi, "-L"], timeout_sec=8.0) or "").splitlines() if line.strip()
        ]
    if toolkit is None:
        probe.absent("toolkit", "no version file or header in $CUDA_HOME, $CUDA_PATH or /usr/local/cuda")
    open_module = None if kernel is None else "Open Kernel Module" in kernel
    return {
        "driver_version": driver,
        "open_kernel_module": open_module,
        "devices": devices,
        "listing": listing,
        "toolkit": toolkit,
    }


def _devices(probe: Probe, smi: str) -> list[dict[str, Any]]:
    failures = len(probe.failures)
    for query in _QUERIES:
        said = probe.run([smi, "--query-gpu=" + query, "--format=csv,noheader,nounits"], timeout_sec=8.0)
        if said is not None:
            # Only the last query's failure counts: the first one fails on an old driver that is otherwise well.
            del probe.failures[failures:]
            return [_device(query, row) for row in csv.reader(io.StringIO(said), skipinitialspace=True) if row]
    probe.absent("devices", probe.failures[-1] if probe.failures else "nvidia-smi did not answer")
    return []


def _device(query: str, row: list[str]) -> dict[str, Any]:
    names = [name.replace(".", "_") for name in query.split(",")]
    values: dict[str, Any] = dict.fromkeys(name.replace(".", "_") for name in _QUERIES[0].split(","))
    for index, name in enumerate(names):
        text = row[index].strip() if index < len(row) else ""
        values[name] = None if text in _NOT_SAID else text
    values["index"] = parse_int(values["index"] or "")
    return values


def _toolkit(probe: Probe) -> dict[str, Any] | None:
    """Returns where the CUDA toolkit is and its version, or None."""
    for root in (probe.environ.get("CUDA_HOME"), probe.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if not root or not root.startswith("/"):
            continue
        text = probe.read(root + "/version.json", limit=1 << 18)
        version = _json_version(text) if text else None
        if version is None:
            match = re.search(
                r"#define\s+CUDA_VERSION\s+(\d+)", probe.read(root + "/include/cuda.h", limit=1 << 22) or ""
            )
            number = parse_int(match.group(1)) if match else None
            version = None if number is None else f"{number // 1000}.{number % 1000 // 10}"
        if version is not None:
            return {"path": root, "version": version}
    return None


def _json_version(text: str) -> str | None:
    try:
        version = json.loads(text)["cuda"]["version"]
    except (ValueError, KeyError, TypeError):
        return None
    return str(version)
