"""Blocks ``tensile`` and ``miopen``: the kernel catalogues, which decide the kernel that a matrix product runs.

Two machines with the same library version may still differ here. A catalogue can be gigabytes, and the probe may take
seconds, so there are three digests: of names and sizes (always), of those and both ends of every file (nearly always),
and of every byte (small catalogues only).
"""

from __future__ import annotations

import hashlib
import os
import time

from aorta.instrumentation._system import Absent
from aorta.instrumentation.probes.libraries import library_folders
from aorta.instrumentation.probes.rocm import rocm_roots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from aorta.instrumentation._system import Probe

_MOST_FILES = 50_000
_END_BYTES = 4096
_MOST_CONTENT_BYTES = 256 << 20
_BLOCK_BUDGET_SEC = 2.5


class _OverBudget(Exception):
    """The digest would take longer than the probe may."""


def tensile(probe: Probe) -> dict[str, Any]:
    """The Tensile kernel catalogues of rocBLAS and hipBLASLt."""
    folders = [(key, probe.environ.get(key, "")) for key in ("ROCBLAS_TENSILE_LIBPATH", "HIPBLASLT_TENSILE_LIBPATH")]
    for origin, folder in library_folders(probe):
        folders += [(f"{origin}:{library}", f"{folder}/{library}/library") for library in ("rocblas", "hipblaslt")]
    return _catalogues(probe, folders, "no Tensile catalogue beside any rocBLAS or hipBLASLt")


def miopen(probe: Probe) -> dict[str, Any]:
    """MIOpen's system databases, and the user's own, which it learns from earlier runs."""
    folders = [(key, probe.environ.get(key, "")) for key in ("MIOPEN_SYSTEM_DB_PATH", "MIOPEN_USER_DB_PATH")]
    folders += [("rocm", root + "/share/miopen/db") for root in rocm_roots(probe)]
    folders += [
        (f"{origin}:share", os.path.dirname(folder) + "/share/miopen/db") for origin, folder in library_folders(probe)
    ]
    home = probe.environ.get("HOME", "")
    folders.append(("user", home + "/.config/miopen" if home else ""))
    return _catalogues(probe, folders, "no MIOpen database in ROCm, PyTorch or the user's home")


def _catalogues(probe: Probe, folders: Sequence[tuple[str, str]], none_reason: str) -> dict[str, Any]:
    """Returns the digests of every catalogue folder that is there.

    Raises:
        Absent: There is none.
    """
    deadline = time.monotonic() + _BLOCK_BUDGET_SEC
    seen: set[str] = set()
    catalogues = []
    for origin, folder in folders:
        if folder.startswith("/") and probe.is_dir(folder) and probe.real(folder) not in seen:
            seen.add(probe.real(folder))
            catalogues.append({"origin": origin, "path": folder, **digest_folder(probe, folder, deadline)})
    if not catalogues:
        raise Absent(none_reason)
    return {"catalogues": catalogues}


def digest_folder(probe: Probe, folder: str, deadline: float) -> dict[str, Any]:
    """Returns the size and the three digests of one catalogue.

    Args:
        probe: The block's probe; a digest left out is recorded in ``missing``.
        folder: Absolute path on the probed machine.
        deadline: ``time.monotonic()`` after which no further file is read.

    Returns:
        ``files``, ``bytes``, and ``listing_sha256``, ``ends_sha256``, ``content_sha256`` (null when over budget). They
        depend on relative names, sizes and contents alone, so they compare between machines.
    """
    files, complete = _files(probe.system.path(folder))
    total = sum(size for _, size in files)
    listing = hashlib.sha256()
    for name, size in files:
        listing.update(b"%s\0%d\0" % (os.fsencode(name), size))
    result: dict[str, Any] = {
        "files": len(files),
        "bytes": total,
        "listing_sha256": listing.hexdigest() if complete else None,
        "ends_sha256": None,
        "content_sha256": None,
    }
    if not complete:
        probe.absent("listing_sha256", f"{folder} holds more than {_MOST_FILES} files")
        return result
    root = probe.system.path(folder)
    for key, whole in (("ends_sha256", False), ("content_sha256", True)):
        if whole and total > _MOST_CONTENT_BYTES:
            probe.absent(key, f"{folder} holds {total} bytes; only up to {_MOST_CONTENT_BYTES} are read whole")
            continue
        try:
            result[key] = _digest(root, files, deadline, whole=whole)
        except _OverBudget:
            probe.absent(key, f"reading {folder} would take longer than the probe may")
        except OSError as error:
            probe.absent(key, f"cannot read {error.filename}: {error.strerror}")
            probe.fail(f"cannot read {error.filename}: {error.strerror}")
    return result


def _files(root: str) -> tuple[list[tuple[str, int]], bool]:
    """Returns (relative name, size) of every regular file in order, and whether that is all of them."""
    found: list[tuple[str, int]] = []
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                found.append((os.path.relpath(path, root), os.path.getsize(path)))
        if len(found) > _MOST_FILES:
            return sorted(found), False
    return sorted(found), True


def _digest(root: str, files: Sequence[tuple[str, int]], deadline: float, *, whole: bool) -> str:
    digest = hashlib.sha256()
    for name, size in files:
        digest.update(b"%s\0%d\0" % (os.fsencode(name), size))
        with open(os.path.join(root, name), "rb", buffering=0) as file:
            if whole:
                while True:
                    block = file.read(1 << 20)
                    if not block:
                        break
                    _check(deadline)
                    digest.update(block)
            else:
                _check(deadline)
                digest.update(file.read(_END_BYTES))
                if size > _END_BYTES:
                    file.seek(max(_END_BYTES, size - _END_BYTES))
                    digest.update(file.read(_END_BYTES))
    return digest.hexdigest()


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise _OverBudget
