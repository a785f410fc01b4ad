"""Blocks of the native libraries: ``hipblaslt``, ``rocblas``, ``composable_kernel``, ``rccl``, ``aotriton``.

A machine often carries several copies (ROCm's, the one inside PyTorch, one on LD_LIBRARY_PATH). Which of them a trial
loads depends on its own imports, so every copy is recorded with its origin and build id, and none is called "the" one.
"""

from __future__ import annotations

import os
import re

from aorta.instrumentation._elf import build_id
from aorta.instrumentation._system import Absent
from aorta.instrumentation.probes.packages import package_folder
from aorta.instrumentation.probes.rocm import rocm_roots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from aorta.instrumentation._system import Probe

_MOST_COPIES = 32


def library_folders(probe: Probe) -> list[tuple[str, str]]:
    """Returns (origin, folder) of every place that GPU libraries are loaded from, each folder once."""
    places = [("LD_LIBRARY_PATH", path) for path in probe.environ.get("LD_LIBRARY_PATH", "").split(":")]
    places += [("rocm", f"{root}/{lib}") for root in rocm_roots(probe) for lib in ("lib", "lib64")]
    torch = package_folder(probe, "torch")
    if torch is not None:
        places.append(("torch", torch + "/lib"))
    for package in ("_rocm_sdk_core", "_rocm_sdk_libraries"):  # ROCm as wheels
        folder = package_folder(probe, package)
        if folder is not None:
            places.append((package, folder + "/lib"))
    seen: set[str] = set()
    folders = []
    for origin, path in places:
        if path.startswith("/") and probe.is_dir(path) and probe.real(path) not in seen:
            seen.add(probe.real(path))
            folders.append((origin, path))
    return folders


def library_copies(probe: Probe, pattern: str) -> list[dict[str, Any]]:
    """Returns every copy of a shared library, one entry a real file.

    Args:
        probe: The block's probe.
        pattern: Regular expression of the library's stem, such as ``librccl``.
    """
    copies: list[dict[str, Any]] = []
    seen: set[str] = set()
    for origin, folder in library_folders(probe):
        for name in probe.names(folder):
            path = f"{folder}/{name}"
            if not re.fullmatch(pattern + r"\.so(\.[\w.]+)?", name) or not probe.is_file(path):
                continue
            real = probe.real(path)
            if real in seen or len(copies) >= _MOST_COPIES:
                continue
            seen.add(real)
            copies.append({"origin": origin, "path": path, "real_path": real, **_identity(probe, real)})
    return copies


def _identity(probe: Probe, path: str) -> dict[str, Any]:
    """Returns what tells one build of a library from another."""
    match = re.search(r"\.so\.(\d[\w.]*)$", path)
    try:
        size: int | None = os.stat(probe.system.path(path)).st_size
        identity = build_id(probe.system.path(path))
    except OSError as error:
        probe.fail(f"cannot read {path}: {error.strerror}")
        size, identity = None, None
    return {"file_version": match.group(1) if match else None, "size_bytes": size, "build_id": identity}


def _header_version(probe: Probe, headers: Sequence[str], prefix: str) -> tuple[str | None, str | None, str | None]:
    """Returns (version, source revision, header) from ``#define <prefix>_MAJOR`` and its relatives."""
    for root in rocm_roots(probe):
        for header in headers:
            path = f"{root}/include/{header}"
            text = probe.read(path, limit=1 << 18) or ""
            defines = dict(re.findall(r"^\s*#\s*define\s+(\w+)\s+\"?([\w.]+)\"?", text, re.MULTILINE))
            parts = [defines.get(f"{prefix}_{part}") for part in ("MAJOR", "MINOR", "PATCH")]
            if all(parts):
                commit = defines.get(f"{prefix}_TWEAK") or defines.get(f"{prefix}_COMMIT_ID")
                return ".".join(part for part in parts if part), commit, path
    return None, None, None


def _cmake_version(probe: Probe, package: str) -> tuple[str | None, str | None]:
    """Returns (version, file) from the package's CMake version file."""
    for root in rocm_roots(probe):
        folder = f"{root}/lib/cmake/{package}"
        for name in probe.names(folder):
            if name.lower().endswith("version.cmake"):
                text = probe.read(f"{folder}/{name}") or ""
                match = re.search(r"set\s*\(\s*PACKAGE_VERSION\s+\"([^\"]+)\"", text)
                if match:
                    return match.group(1), f"{folder}/{name}"
    return None, None


def _library(probe: Probe, title: str, pattern: str, headers: Sequence[str], prefix: str, cmake: str) -> dict[str, Any]:
    """Returns one library's block.

    Raises:
        Absent: Neither a copy nor a header nor a CMake file of it is there.
    """
    copies = library_copies(probe, pattern)
    version, commit, source = _header_version(probe, headers, prefix)
    if version is None:
        version, source = _cmake_version(probe, cmake)
    if not copies and version is None:
        raise Absent(f"no {title}: no library in ROCm, PyTorch or LD_LIBRARY_PATH, and no header")
    if version is None:
        probe.absent("version", "no header or CMake file of it; the copies are told apart by their build ids")
    if commit is None:
        probe.absent("git_commit", "no header names it")
    return {"version": version, "version_source": source, "git_commit": commit, "copies": copies}


def hipblaslt(probe: Probe) -> dict[str, Any]:
    """hipBLASLt: version of the installation's headers, and every copy of the library."""
    headers = ("hipblaslt/hipblaslt-version.h",)
    return _library(probe, "hipBLASLt", "libhipblaslt", headers, "HIPBLASLT_VERSION", "hipblaslt")


def rocblas(probe: Probe) -> dict[str, Any]:
    """rocBLAS: version of the installation's headers, and every copy of the library."""
    headers = ("rocblas/internal/rocblas-version.h", "rocblas-version.h")
    return _library(probe, "rocBLAS", "librocblas", headers, "ROCBLAS_VERSION", "rocblas")


def composable_kernel(probe: Probe) -> dict[str, Any]:
    """Composable Kernel: header library with a few device libraries."""
    pattern = r"lib(?:device_\w+_operations|composablekernels)"
    headers = ("ck/version.h", "ck/config.h")
    return _library(probe, "Composable Kernel", pattern, headers, "CK_VERSION", "composable_kernel")


def rccl(probe: Probe) -> dict[str, Any]:
    """RCCL, and the network and tuner plugins that it would find."""
    block = _library(probe, "RCCL", "librccl", ("rccl/rccl.h",), "NCCL", "rccl")
    block["plugins"] = library_copies(probe, r"lib(?:rccl|nccl)-(?:net|tuner|profiler)[\w-]*")
    return block


def aotriton(probe: Probe) -> dict[str, Any]:
    """AOTriton: the ahead-of-time compiled attention kernels, usually inside PyTorch."""
    copies = library_copies(probe, r"libaotriton(?:_v\d+)?")
    if not copies:
        raise Absent("no libaotriton in ROCm, PyTorch or LD_LIBRARY_PATH")
    versions = sorted({str(copy["file_version"]) for copy in copies if copy["file_version"]})
    if not versions:
        probe.absent("version", "no copy carries a version in its file name")
    version = versions[0] if len(versions) == 1 else None
    if len(versions) > 1:
        probe.absent("version", f"copies differ: {', '.join(versions)}")
    images = [
        {"origin": origin, "path": f"{folder}/{name}", "files": len(probe.names(f"{folder}/{name}"))}
        for origin, folder in library_folders(probe)
        for name in probe.names(folder)
        if name.startswith("aotriton.images")
    ]
    return {"version": version, "copies": copies, "images": images}
