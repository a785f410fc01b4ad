"""The registry as rows: broken plugins are told, not hidden."""

from __future__ import annotations

from dataclasses import replace

from aorta.registry import Registry, load_registry
from aorta.registry.listing import environment_rows, mitigation_rows, table


def broken(registry: Registry) -> Registry:
    return replace(
        registry,
        broken_mitigations={"acme_fix": "the plugin acme cannot be loaded: ImportError: no hip"},
        broken_environments={"acme_box": "the plugin acme is not valid"},
    )


def test_a_broken_plugin_s_names_come_last_with_the_reason() -> None:
    """A name that cannot be used is listed, so that nobody looks for it in vain."""
    registry = broken(load_registry())
    mitigations, environments = mitigation_rows(registry), environment_rows(registry)
    assert [row["name"] for row in mitigations] == [*registry.mitigations, "acme_fix"]
    assert (mitigations[-1]["problem"], environments[-1]["problem"]) == (
        "the plugin acme cannot be loaded: ImportError: no hip",
        "the plugin acme is not valid",
    )
    assert table(mitigations)[-1].split(maxsplit=2)[2].startswith("CANNOT BE USED: the plugin acme cannot be loaded")


def test_a_value_that_would_spoil_the_terminal_is_quoted() -> None:
    """Control characters are shown, not sent."""
    rows = [{"name": "m", "source": "s", "env": {"A": "x\x1b[2J", "B": "two words"}, "problem": None}]
    assert table(rows)[1].endswith("A='x\\x1b[2J' B=two words")


def test_an_empty_list_says_so() -> None:
    """Not a heading without rows."""
    assert table([]) == ["none"]
