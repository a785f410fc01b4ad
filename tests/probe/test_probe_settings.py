"""What a recipe's settings become, and what is said of wrong ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aorta.probe.settings import ProbeSettings, problems

GIVEN: dict[str, Any] = {
    "custom_patterns": [{"id": "a", "match": {"regex": "x(\\d)", "condition": "capture > 1"}, "on_match": "warn"}],
    "hang_window_sec": 10,
    "tier3_vram_growth": 256,
    "disable_detectors": ["nan_signature"],
    "disable_detector_tiers": [3, "tier1"],
    "timeout_per_trial": 1800,
    "step_time_regex": "(\\d+) ms",
    "retain": {"on_pass": "summary"},
    "ticket": "T",
}


def matching(match: dict[str, Any]) -> dict[str, Any]:
    """A recipe's mapping with one pattern."""
    return {"custom_patterns": [{"id": "a", "match": match}]}


def test_defaults() -> None:
    """Nothing given: half a minute's window after a minute's grace, everything on, everything kept."""
    settings = ProbeSettings()
    assert (settings.hang_window_sec, settings.hang_grace_period_at_start) == (30, 60)
    assert settings.is_on("hang") and settings.is_on("any pattern")
    assert settings.retain == {"on_fail": "full", "on_pass": "full", "on_error": "full"}
    assert (settings.timeout_per_trial, settings.vram_growth_mib) == (None, None)


def test_settings_survive_json() -> None:
    """What a cell's file carries gives the same settings again."""
    settings = ProbeSettings.from_mapping(GIVEN)
    again = ProbeSettings.from_mapping(json.loads(json.dumps(settings.to_json())))
    assert again.to_json() == settings.to_json()
    assert again.disable_detector_tiers == {"tier1", "tier3"}


def test_a_valid_mapping_has_no_problems() -> None:
    """Other keys of the recipe are left alone."""
    assert problems(GIVEN) == []


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        (matching({"regex": "("}), "custom_patterns[0].match.regex", "cannot be compiled"),
        (matching({"regex": "x" * 5000}), "custom_patterns[0].match.regex", "4096"),
        (matching({}), "custom_patterns[0].match", "is empty"),
        (matching({"condition": "os"}), "custom_patterns[0].match.condition", "not allowed"),
        (matching({"condition": "capture > 1"}), "custom_patterns[0].match.condition", "regex"),
        ({"custom_patterns": [{"id": "hang", "match": {"regex": "x"}}]}, "custom_patterns[0].id", "engine's own"),
        ({"custom_patterns": [{"id": "a b", "match": {"regex": "x"}}]}, "custom_patterns[0].id", "letters"),
        ({"custom_patterns": [{"id": "a", "match": {"regex": "x"}}] * 2}, "custom_patterns[1].id", "_patterns[0]"),
        (
            {"custom_patterns": [{"id": "a", "match": {"regex": "x"}, "on_match": "fail", "required_for_pass": True}]},
            "custom_patterns[0].required_for_pass",
            "drop one",
        ),
        ({"disable_detectors": ["sigsegw"]}, "disable_detectors[0]", "did you mean 'sigsegv'?"),
        ({"disable_detector_tiers": ["tier9"]}, "disable_detector_tiers[0]", "tier1, tier2"),
        ({"step_time_regex": "step"}, "step_time_regex", "no group"),
    ],
)  # fmt: skip
def test_a_problem_names_its_place(data: dict[str, Any], path: str, message: str) -> None:
    """And what would be right."""
    ((found, text),) = problems(data)
    assert found == path
    assert message in text


def test_a_pattern_may_be_disabled_by_its_id() -> None:
    """Ids are detectors' names like any other."""
    assert problems({**GIVEN, "disable_detectors": ["a"]}) == []
