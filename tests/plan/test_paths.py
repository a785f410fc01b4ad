"""Names become folders that cannot leave their parent."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.plan.paths import RunLayout, safe_name, ticket_folder


@pytest.mark.parametrize("name", ["EXAMPLE-151", "training", "a b", "x_y.z", "T@2"])
def test_ordinary_names_stay_as_they_are(name: str) -> None:
    """A ticket's folder is the ticket."""
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name", [".", "..", "a/b", "../../etc", "/abs", "", "\x00", "_no_ticket_", ".hidden", "ü{x}\n"]
)
def test_odd_names_stay_inside(name: str) -> None:
    """No name is a path, hidden, or another name's folder."""
    made = safe_name(name)
    assert "/" not in made and not made.startswith(".") and made.isprintable()


@given(st.lists(st.text(min_size=1, max_size=300), min_size=2, max_size=2, unique=True))
def test_different_names_have_different_folders(names: list[str]) -> None:
    """Two tickets never share a folder, and each fits a file system."""
    first, second = map(safe_name, names)
    assert first != second
    assert max(len(first), len(second)) <= 255


def test_the_absent_ticket_is_no_ticket() -> None:
    """The guide's folder is kept for recipes without a ticket."""
    assert ticket_folder(None) == "_no_ticket_"
    assert ticket_folder("_no_ticket_") != "_no_ticket_"


def test_layout_of_a_trial() -> None:
    """The guide's path of a trial file."""
    layout = RunLayout("runs/1", "training")
    assert layout.trial("baseline-local", 3) == Path("runs/1/cells/baseline-local/training/trial_d0_m0_t3.json")
