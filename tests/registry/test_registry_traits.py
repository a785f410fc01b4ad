"""What a workload's class says of itself, when it says nonsense."""

from __future__ import annotations

from typing import Any

import pytest

from aorta.registry import workloads
from aorta.registry.workloads import WorkloadTraits, traits
from aorta.workloads import Workload

NONSENSE = [
    ("isolation_default", "nope"),
    ("min_world_size", "two"),
    ("min_world_size", True),
    ("min_world_size", 0),
    ("isolation_supported", None),
    ("isolation_supported", [[]]),
    ("launch_mode", 3),
    ("acts_on", "docker"),
    ("isolation_required", "yes"),
]


@pytest.mark.parametrize(("name", "value"), NONSENSE)
def test_an_attribute_that_cannot_be_used_is_remarked_on(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    """The default stands in, and a person is told; a wrong value would be frozen into every trial's request."""
    monkeypatch.setattr(workloads, "workload_class", lambda asked: type("Odd", (Workload,), {name: value}))
    found = traits("odd")
    assert getattr(found, name) == getattr(WorkloadTraits(), name)
    assert len(found.remarks) == 1
    assert found.remarks[0].startswith(f"{name} is {value!r}, not ")


def test_a_class_that_says_nothing_odd_has_no_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are taken for sets."""
    attributes = {"acts_on": ["docker"], "launch_mode": "distributed", "min_world_size": 2}
    monkeypatch.setattr(workloads, "workload_class", lambda asked: type("Fine", (Workload,), attributes))
    found = traits("fine")
    assert (found.acts_on, found.launch_mode, found.min_world_size) == (frozenset({"docker"}), "distributed", 2)
    assert found.remarks == ()
