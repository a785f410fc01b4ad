"""Reading an odd machine: what is not there, what refuses, and what is no text."""

from __future__ import annotations

import json
import os

import pytest

from aorta.instrumentation._system import clean, parse_int, parse_key_values
from tests.instrumentation.conftest import Machine


def test_a_file_that_is_not_there_is_no_failure(machine: Machine) -> None:
    """Absence is ordinary."""
    probe = machine.probe()
    assert (probe.read("/nothing"), probe.failures) == (None, [])


def test_a_file_that_refuses_is_a_failure(machine: Machine) -> None:
    """A read error is reported with the path, since the thing is there."""
    machine.link("/sys/odd", "/proc/self/mem")  # reading it at 0 gives EIO, for root too
    probe = machine.probe()
    assert (probe.read("/sys/odd"), probe.failures) == (None, ["cannot read /sys/odd: Input/output error"])


def test_an_optional_refusal_is_not_reported(machine: Machine) -> None:
    """Files that are root's alone by design do not make the snapshot partial."""
    machine.link("/sys/odd", "/proc/self/mem")
    probe = machine.probe()
    assert (probe.read("/sys/odd", optional=True), probe.failures) == (None, [])


def test_a_fifo_does_not_block(machine: Machine) -> None:
    """Opening a FIFO that nobody writes returns at once."""
    os.mkfifo(machine.root / "pipe")
    assert machine.probe().read("/pipe") == ""


def test_a_read_is_bounded(machine: Machine) -> None:
    """No more than the limit is read, however large the file."""
    machine.file("/big", "x" * 1000)
    assert machine.probe().read("/big", limit=10) == "x" * 10


def test_bytes_that_are_no_text_are_escaped(machine: Machine) -> None:
    """A file that is not UTF-8 is still recorded."""
    machine.file("/odd", b"a\xffb\n")
    assert machine.probe().read("/odd") == "a\\xffb"


def test_paths_are_named_as_the_machine_would(machine: Machine) -> None:
    """A resolved link inside the tree does not show where the tree lies."""
    machine.file("/opt/rocm-6.4/lib/x")
    machine.link("/opt/rocm", "rocm-6.4")
    assert machine.probe().real("/opt/rocm/lib/x") == "/opt/rocm-6.4/lib/x"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\udcffb", "a\\udcffb"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ((1, None), [1, None]),
        ({1: b"x"}, {"1": "b'x'"}),
    ],
)
def test_clean_makes_strict_json(value: object, expected: object) -> None:
    """Whatever a probe returned can be written."""
    assert clean(value) == expected
    json.dumps(clean(value), allow_nan=False).encode()


def test_clean_bounds_the_depth() -> None:
    """A value that contains itself ends."""
    loop: list[object] = []
    loop.append(loop)
    assert len(json.dumps(clean(loop))) < 2000


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("0x1f", 31), ("-1", -1), ("", None), ("12 kB", None)])
def test_numbers(text: str, number: int | None) -> None:
    """Only whole numbers parse."""
    assert parse_int(text) == number


def test_key_values_take_the_first_and_drop_quotes() -> None:
    """os-release and cpuinfo lines parse alike."""
    assert parse_key_values("A=\"x y\"\nA=2\nnoise\nB='z'\n", "=") == {"A": "x y", "B": "z"}
