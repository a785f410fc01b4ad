"""docs/workloads.md is what the configuration classes say."""

from __future__ import annotations

from pathlib import Path

from aorta.registry.workloads import workload_names
from aorta.workloads.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"


def test_the_page_is_current() -> None:
    """`make docs` was run after the last change."""
    assert PAGE.read_text("utf-8") == reference()


def test_every_built_in_workload_has_a_section() -> None:
    """A new workload is documented in the commit that adds it."""
    built_in = [name for name in workload_names() if f"\n## `{name}`\n" not in reference()]
    assert built_in == []
