"""Digests of kernel catalogues: they compare between machines, and they are bounded."""

from __future__ import annotations

import time
from typing import Any

import pytest

from aorta.instrumentation._system import Absent
from aorta.instrumentation.probes.catalogues import digest_folder, miopen, tensile
from tests.instrumentation.conftest import Machine

DIGESTS = ("listing_sha256", "ends_sha256", "content_sha256")


def digests(machine: Machine, folder: str, deadline_in_sec: float = 30.0) -> dict[str, Any]:
    """Returns the three digests of a folder."""
    result = digest_folder(machine.probe(), folder, time.monotonic() + deadline_in_sec)
    return {key: result[key] for key in DIGESTS}


def test_the_place_does_not_matter(machine: Machine) -> None:
    """The same catalogue elsewhere has the same digests."""
    for folder in ("/a", "/b/c"):
        machine.files({f"{folder}/x.co": "kernel", f"{folder}/sub/y.dat": "index"})
    assert digests(machine, "/a") == digests(machine, "/b/c")
    assert None not in digests(machine, "/a").values()


@pytest.mark.parametrize(
    ("position", "changed"),
    [(0, {"ends_sha256", "content_sha256"}), (10_000, {"content_sha256"}), (19_999, {"ends_sha256", "content_sha256"})],
)
def test_a_changed_byte_shows(machine: Machine, position: int, changed: set[str]) -> None:
    """Each digest sees what it says it reads, and no more."""
    content = bytearray(20_000)
    machine.file("/a/x.co", bytes(content))
    content[position] = 1
    machine.file("/b/x.co", bytes(content))
    before, after = digests(machine, "/a"), digests(machine, "/b")
    assert {key for key in DIGESTS if before[key] != after[key]} == changed


def test_a_renamed_file_shows_everywhere(machine: Machine) -> None:
    """Names are part of every digest."""
    machine.file("/a/x.co", "kernel")
    machine.file("/b/y.co", "kernel")
    before, after = digests(machine, "/a"), digests(machine, "/b")
    assert all(before[key] != after[key] for key in DIGESTS)


def test_out_of_time_leaves_the_listing_and_a_reason(machine: Machine) -> None:
    """A slow disk costs the digests of contents, not the probe's time."""
    machine.file("/a/x.co", "kernel")
    probe = machine.probe()
    result = digest_folder(probe, "/a", time.monotonic() - 1)
    assert (result["ends_sha256"], result["content_sha256"]) == (None, None)
    assert result["listing_sha256"] == digests(machine, "/a")["listing_sha256"]
    assert probe.missing["content_sha256"] == "reading /a would take longer than the probe may"


def test_tensile_finds_catalogues_beside_the_libraries(machine: Machine) -> None:
    """ROCm's, PyTorch's and the one that a variable points to."""
    machine.file("/opt/rocm/lib/rocblas/library/TensileLibrary.dat", "a")
    machine.file("/site/torch/__init__.py")
    machine.file("/site/torch/lib/hipblaslt/library/gfx942.co", "b")
    machine.file("/tuned/x.dat", "c")
    machine.environ["HIPBLASLT_TENSILE_LIBPATH"] = "/tuned"
    origins = [catalogue["origin"] for catalogue in tensile(machine.probe())["catalogues"]]
    assert origins == ["HIPBLASLT_TENSILE_LIBPATH", "rocm:rocblas", "torch:hipblaslt"]


def test_miopen_includes_what_the_user_has_learned(machine: Machine) -> None:
    """The user's own database changes the kernel that is chosen."""
    machine.file("/opt/rocm/share/miopen/db/gfx942.db", "a")
    machine.file("/home/me/.config/miopen/gfx942.ufdb.txt", "b")
    machine.environ["HOME"] = "/home/me"
    assert [catalogue["origin"] for catalogue in miopen(machine.probe())["catalogues"]] == ["rocm", "user"]


def test_no_catalogue_is_absent(machine: Machine) -> None:
    """A machine without ROCm has none."""
    with pytest.raises(Absent, match="no Tensile catalogue"):
        tensile(machine.probe())
