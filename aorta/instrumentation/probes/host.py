"""Blocks ``host``, ``runtime_context`` and ``python``."""

from __future__ import annotations

import os
import platform
import re
import sys

from aorta.instrumentation._system import parse_int, parse_key_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aorta.instrumentation._system import Probe

# Kernel parameters known to change GPU, PCIe or memory behaviour; the others may name disks and hosts.
_BOOT_PARAMETERS = re.compile(
    r"(amd_iommu|intel_iommu|iommu|iommu\..+|pci|pcie_.+|amdgpu\..+|amdkfd\..+|nvidia.*\..+|numa_balancing|numa"
    r"|transparent_hugepage|hugepages|hugepagesz|default_hugepagesz|mitigations|isolcpus|nohz_full|rcu_nocbs"
    r"|processor\..+|intel_idle\..+|idle|cpufreq\..+|amd_pstate|intel_pstate|clocksource|tsc|cma|swiotlb)(=.*)?"
)


def host(probe: Probe) -> dict[str, Any]:
    """Kernel, machine, C library, operating system, processor, memory and the settings that move step times."""
    cpuinfo = parse_key_values(probe.read("/proc/cpuinfo", limit=1 << 20) or "", ":")
    hostname = probe.read("/proc/sys/kernel/hostname")
    kernel = probe.read("/proc/sys/kernel/osrelease")
    if probe.system.is_live:
        uname = os.uname()
        hostname, kernel = hostname or uname.nodename, kernel or uname.release
    if kernel is None:
        probe.absent("kernel", "no /proc/sys/kernel/osrelease")
    if hostname is None:
        probe.absent("hostname", "no /proc/sys/kernel/hostname")
    boot = [word for word in (probe.read("/proc/cmdline") or "").split() if _BOOT_PARAMETERS.fullmatch(word)]
    return {
        "hostname": hostname,
        "kernel": kernel,
        "kernel_build": probe.read("/proc/sys/kernel/version"),
        "machine": os.uname().machine,
        "os": _operating_system(probe),
        "glibc": _glibc(probe),
        "boot_id": probe.read("/proc/sys/kernel/random/boot_id"),
        "boot_parameters": boot,
        "hypervisor": "hypervisor" in cpuinfo.get("flags", "").split(),
        "cpu": _cpu(probe, cpuinfo),
        "memory": _memory(probe),
        "numa_nodes": len([name for name in probe.names("/sys/devices/system/node") if re.fullmatch(r"node\d+", name)]),
        "numa_balancing": probe.read_int("/proc/sys/kernel/numa_balancing"),
        "transparent_hugepages": _chosen(probe.read("/sys/kernel/mm/transparent_hugepage/enabled")),
        "iommu_groups": len(probe.names("/sys/kernel/iommu_groups")),
    }


def _operating_system(probe: Probe) -> dict[str, Any]:
    release = parse_key_values(probe.read("/etc/os-release") or probe.read("/usr/lib/os-release") or "", "=")
    if not release:
        probe.absent("os", "no /etc/os-release")
    return {"id": release.get("ID"), "version": release.get("VERSION_ID"), "name": release.get("PRETTY_NAME")}


def _glibc(probe: Probe) -> str | None:
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        name = None
    if not name:
        probe.absent("glibc", "the C library does not name a GNU version (musl?)")
        return None
    return name.split()[-1]


def _cpu(probe: Probe, cpuinfo: dict[str, str]) -> dict[str, Any]:
    text = probe.read("/proc/cpuinfo", limit=1 << 22) or ""
    packages = set(re.findall(r"^physical id\s*:\s*(\d+)", text, re.MULTILINE))
    governor = probe.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", optional=True)
    try:
        allowed: int | None = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        allowed = None
    return {
        "model": cpuinfo.get("model name") or cpuinfo.get("CPU part"),
        "vendor": cpuinfo.get("vendor_id") or cpuinfo.get("CPU implementer"),
        "microcode": cpuinfo.get("microcode"),
        "logical": len(re.findall(r"^processor\s*:", text, re.MULTILINE)) or os.cpu_count(),
        "sockets": len(packages) or None,
        "allowed": allowed,
        "governor": governor,
        "isa": sorted(
            flag
            for flag in set((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split())
            if flag.startswith(("avx", "amx", "fma", "f16c", "sve", "asimd", "bf16"))
        ),
    }


def _memory(probe: Probe) -> dict[str, Any]:
    meminfo = parse_key_values(probe.read("/proc/meminfo") or "", ":")

    def size(key: str) -> int | None:
        number = parse_int(meminfo.get(key, "").split(" ")[0])
        return None if number is None else number * 1024

    limit = probe.read("/sys/fs/cgroup/memory.max", optional=True)
    limit = limit or probe.read("/sys/fs/cgroup/memory/memory.limit_in_bytes", optional=True)
    limit_bytes = None if limit is None else parse_int(limit)
    total = size("MemTotal")
    if total is None:
        probe.absent("memory", "no MemTotal in /proc/meminfo")
    # cgroup v1 writes "no limit" as a number near 2**63.
    unlimited = limit_bytes is not None and total is not None and limit_bytes >= total
    return {
        "total_bytes": total,
        "swap_total_bytes": size("SwapTotal"),
        "hugepages_total": parse_int(meminfo.get("HugePages_Total", "")),
        "cgroup_limit_bytes": None if unlimited else limit_bytes,
    }


def _chosen(text: str | None) -> str | None:
    """Returns the bracketed word of a sysfs choice such as ``always [madvise] never``."""
    match = re.search(r"\[(\w+)\]", text or "")
    return match.group(1) if match else None


def runtime_context(probe: Probe) -> dict[str, Any]:
    """What encloses the process: a container engine or none, and what kind of Python environment."""
    container, evidence = _container(probe)
    containerenv = parse_key_values(probe.read("/run/.containerenv", optional=True) or "", "=")
    python, prefix = _python_environment(probe)
    return {
        "container": container,
        "container_evidence": evidence,
        "container_image": containerenv.get("image") or probe.environ.get("SINGULARITY_CONTAINER"),
        "container_id": containerenv.get("id") or _container_id(probe),
        "python": python,
        "python_prefix": prefix,
        "conda_environment": probe.environ.get("CONDA_DEFAULT_ENV"),
        "scheduler": next(
            (name for name, key in (("slurm", "SLURM_JOB_ID"), ("pbs", "PBS_JOBID"), ("lsf", "LSB_JOBID"))
             if probe.environ.get(key)),
            None,
        ),
    }  # fmt: skip


def _container(probe: Probe) -> tuple[str, list[str]]:
    """Returns the engine and what shows it; the more specific marks are looked at first.

    A Singularity image made from a Docker one keeps ``/.dockerenv``, and podman offers docker's own names.
    """
    cgroup = probe.read("/proc/1/cgroup", optional=True) or ""
    declared = probe.environ.get("container", "")
    marks = [
        ("singularity", "/.singularity.d", probe.exists("/.singularity.d")),
        ("singularity", "$SINGULARITY_NAME", bool(probe.environ.get("SINGULARITY_NAME"))),
        ("singularity", "$APPTAINER_NAME", bool(probe.environ.get("APPTAINER_NAME"))),
        ("podman", "/run/.containerenv", probe.exists("/run/.containerenv")),
        ("podman", "$container", declared == "podman"),
        ("podman", "/proc/1/cgroup", "libpod" in cgroup),
        ("docker", "/.dockerenv", probe.exists("/.dockerenv")),
        ("docker", "/proc/1/cgroup", "docker" in cgroup),
        ("other", "/proc/1/cgroup", bool(re.search(r"kubepods|containerd|crio|lxc|garden", cgroup))),
        ("other", "$container", bool(declared) and declared != "podman"),
    ]
    found = next((engine for engine, _, present in marks if present), "baremetal")
    return found, [mark for engine, mark, present in marks if present and engine == found]


def _container_id(probe: Probe) -> str | None:
    text = (probe.read("/proc/self/mountinfo", limit=1 << 18, optional=True) or "") + (
        probe.read("/proc/self/cgroup", optional=True) or ""
    )
    match = re.search(r"/(?:containers|docker|docker-|libpod-|cri-containerd-)/?([0-9a-f]{64})\b", text)
    return match.group(1) if match else None


def _python_environment(probe: Probe) -> tuple[str, str]:
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):
        return "conda", sys.prefix
    if sys.prefix != sys.base_prefix:
        return "venv", sys.prefix
    # Before Python 3.11, `python -S` leaves sys.prefix at the base interpreter's.
    beside = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable or "")))
    if sys.executable and os.path.isfile(os.path.join(beside, "pyvenv.cfg")):
        return "venv", beside
    return "system", sys.prefix


def python(probe: Probe) -> dict[str, Any]:
    """The interpreter that ran the probe, and the packages that it would import."""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "build": " ".join(platform.python_build()),
        "compiler": platform.python_compiler(),
        "executable": sys.executable or None,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "hash_seed": probe.environ.get("PYTHONHASHSEED"),
        "path": list(probe.system.python_path),
        "packages": _packages(probe),
    }


def _packages(probe: Probe) -> dict[str, str]:
    """Returns installed distributions by name, read from folder names: 100 times faster than their metadata."""
    found: dict[str, str] = {}
    for folder in probe.system.python_path:
        if not os.path.isdir(folder or "."):
            continue
        for entry in probe.names(os.path.abspath(folder or ".")):
            match = re.fullmatch(r"(.+?)-([^-]+)\.(?:dist-info|egg-info)", entry)
            if match:
                found.setdefault(match.group(1).replace("_", "-").lower(), match.group(2))
    return dict(sorted(found.items()))
