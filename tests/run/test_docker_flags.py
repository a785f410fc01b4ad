"""A trial's variables as flags of ``docker run``."""

from __future__ import annotations

from typing import Any

import pytest

from aorta.run import docker_env_flags


def test_flags_are_sorted_by_name() -> None:
    """Whatever order the mapping has."""
    assert docker_env_flags({"B": "2", "A": "x=y z", "_C": ""}) == ["-e", "A=x=y z", "-e", "B=2", "-e", "_C="]


def test_nothing_comes_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's variables stay outside, and no flag is without a value."""
    monkeypatch.setenv("HSA_XNACK", "host")
    assert docker_env_flags({}) == []
    assert docker_env_flags({"HSA_XNACK": "1"}) == ["-e", "HSA_XNACK=1"]


@pytest.mark.parametrize(
    ("variables", "error", "message"),
    [
        ({"9A": "1"}, ValueError, "'9A' is not the name of a variable"),
        ({"": "1"}, ValueError, "'' is not the name of a variable"),
        ({"A=B": "1"}, ValueError, "'A=B' is not the name"),
        ({"A\n": "1"}, ValueError, "is not the name"),
        ({"A": "x\0y"}, ValueError, "A: a value must not hold a NUL"),
        ({"A": 1}, TypeError, "A: a value must be a string, not 1"),
        ({"A": None}, TypeError, "A: a value must be a string, not None"),
        ({1: "1"}, TypeError, "the name of a variable must be a string, not 1"),
    ],
)
def test_what_is_no_variable_is_refused(variables: dict[Any, Any], error: type[Exception], message: str) -> None:
    """Names and values are checked before anything is built."""
    with pytest.raises(error, match=message):
        docker_env_flags(variables)
