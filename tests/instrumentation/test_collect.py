"""collect_env(): always an answer, always of the same shape."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aorta.instrumentation import _collect as collect_module
from aorta.instrumentation import collect_env, is_valid_snapshot, placeholder_snapshot
from aorta.instrumentation._collect import run_probes
from aorta.instrumentation._shape import BLOCKS
from aorta.instrumentation._system import Absent, Probe, System
from tests.instrumentation.conftest import Machine

SchemaErrors = Callable[[Any], list[str]]


def one_block(function: Callable[[Probe], dict[str, Any]], limit_sec: float = 5.0) -> tuple[dict[str, Any], list[str]]:
    """Returns what the guard makes of one probe."""
    blocks, reasons = run_probes(System(environ={}), {"x": function}, limit_sec=limit_sec)
    return blocks["x"], reasons


def test_this_machine_validates(schema_errors: SchemaErrors) -> None:
    """A real snapshot, PyTorch's flags included, is what the schema says."""
    snapshot = collect_env()
    assert schema_errors(snapshot) == []
    assert is_valid_snapshot(snapshot)
    assert snapshot["pytorch"]["flags"]["matmul_allow_tf32"] in (True, False)


def test_an_empty_machine_validates(machine: Machine, schema_errors: SchemaErrors) -> None:
    """With nothing to find, every device block is absent with a reason, and nothing has failed."""
    snapshot = collect_env(root=str(machine.root), environ={"PATH": ""}, python_path=[])
    assert schema_errors(snapshot) == []
    present = {name for name in BLOCKS if snapshot[name]["available"]}
    assert present == {"host", "runtime_context", "python", "env_vars"}
    assert (snapshot["partial"], snapshot["partial_reasons"]) == (False, [])


def test_a_full_machine_validates(full_machine: Machine, schema_errors: SchemaErrors) -> None:
    """With something to find for every block, every block is what the schema says."""
    root = full_machine.root
    snapshot = collect_env(False, root=str(root), environ=full_machine.environ, python_path=[str(root / "site")])
    assert schema_errors(snapshot) == []
    assert [name for name in BLOCKS if not snapshot[name]["available"]] == []
    assert snapshot["partial_reasons"] == []


def test_without_torch_the_flags_are_unknown_not_invented() -> None:
    """A quick snapshot says that PyTorch was not asked."""
    block = collect_env(import_torch=False)["pytorch"]
    assert (block["flags"], block["sdpa_backends"], block["runtime"]) == (None, None, None)
    assert block["missing"]["flags"] == "PyTorch was not imported: the caller asked for a quick snapshot"


def test_an_exception_becomes_a_reason() -> None:
    """A probe that raises loses its own block only, and makes the snapshot partial."""

    def broken(probe: Probe) -> dict[str, Any]:
        raise PermissionError(13, "Permission denied")

    block, reasons = one_block(broken)
    expected = "PermissionError: [Errno 13] Permission denied"
    assert block == {"available": False, "reason": expected, "missing": {}}
    assert reasons == [f"x: {expected}"]


def test_absence_is_not_a_failure() -> None:
    """A thing that is not there leaves the snapshot whole."""

    def absent(probe: Probe) -> dict[str, Any]:
        raise Absent("no such thing")

    assert one_block(absent) == ({"available": False, "reason": "no such thing", "missing": {}}, [])


def test_a_probe_that_never_returns_is_given_up() -> None:
    """A read that blocks in the kernel costs its block, not the snapshot."""
    release = threading.Event()

    def stuck(probe: Probe) -> dict[str, Any]:
        release.wait(30)
        return {}

    block, reasons = one_block(stuck, limit_sec=0.1)
    release.set()
    assert block["reason"] == "did not finish within 0.1 s"
    assert reasons == ["x: did not finish within 0.1 s"]


def test_without_threads_the_probes_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container at its limit of processes still gets a snapshot."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert one_block(lambda probe: {"value": 1})[0]["value"] == 1


def test_a_failure_of_the_collection_itself_still_gives_every_block(
    monkeypatch: pytest.MonkeyPatch, schema_errors: SchemaErrors
) -> None:
    """Even a broken collector returns a valid, partial snapshot."""

    def broken(**kwargs: object) -> System:
        raise OSError("no current folder")

    monkeypatch.setattr(collect_module, "System", broken)
    snapshot = collect_env()
    assert schema_errors(snapshot) == []
    assert snapshot["partial_reasons"] == ["snapshot: OSError: no current folder"]


def test_a_placeholder_validates_and_is_no_snapshot(schema_errors: SchemaErrors) -> None:
    """The stand-in keeps the descriptor and cannot be taken for a capture."""
    placeholder = placeholder_snapshot({"name": "box", "docker": "acme/box:2", "env": {}})
    assert schema_errors(placeholder) == []
    assert placeholder["environment"]["docker"] == "acme/box:2"
    assert not is_valid_snapshot(placeholder)


@pytest.mark.parametrize("damage", ["not_a_dict", "version", "bool_version", "captured", "block", "available", "time"])
def test_what_is_no_snapshot(damage: str, machine: Machine) -> None:
    """Anything half made is refused."""
    value: Any = collect_env(False, root=str(machine.root), environ={}, python_path=[])
    assert is_valid_snapshot(value)
    if damage == "not_a_dict":
        value = [value]
    elif damage == "version":
        value["schema_version"] = 2
    elif damage == "bool_version":
        value["schema_version"] = True
    elif damage == "captured":
        value["snapshot_captured"] = "true"
    elif damage == "block":
        del value["rccl"]
    elif damage == "available":
        value["rocm"]["available"] = None
    else:
        value["captured_at"] = None
    assert not is_valid_snapshot(value)


def test_the_schema_refuses_fields_of_an_absent_block(machine: Machine, schema_errors: SchemaErrors) -> None:
    """An absent block cannot carry a guessed value."""
    snapshot = collect_env(False, root=str(machine.root), environ={}, python_path=[])
    snapshot["rocm"]["version"] = "6.4"
    assert [error.split(":")[0] for error in schema_errors(snapshot)] == ["$.rocm"]


def test_the_schema_knows_every_block(machine: Machine, schema_errors: SchemaErrors, tmp_path: Path) -> None:
    """A block that the code adds or drops without the schema is noticed."""
    snapshot = collect_env(False, root=str(machine.root), environ={}, python_path=[])
    for name in BLOCKS:
        without = {key: value for key, value in snapshot.items() if key != name}
        assert schema_errors(without) == [f"$: '{name}' is a required property"]
