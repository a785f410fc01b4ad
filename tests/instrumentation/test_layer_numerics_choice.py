"""A setting of layer_numerics that meets nothing is told: it must not look like a run without a fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aorta.instrumentation.layer_numerics.session import Session
from aorta.instrumentation.layer_numerics.spec import Follow, Scope, Spec, Watch, read_spec

Run = Callable[..., tuple[list[str], list[str]]]


class Bag(nn.Module):
    """Hands two tensors on by name, numbers and whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(2, 2, bias=False)

    def forward(self, features: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"features": self.gate(features), "ids": ids}


class Deep(nn.Module):
    """Two bags."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([Bag(), Bag()])

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(3)
        for bag in self.bags:
            features = bag(features=features, ids=ids)["features"]
        return features


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs models, each call a step; returns what was told, and the warnings of the summary."""
    started: list[Session] = []

    def go(*models: nn.Module, **spec: Any) -> tuple[list[str], list[str]]:
        told: list[str] = []
        started.append(Session(Spec(folder=str(tmp_path), step_end="forward", **spec), 0, told.append))
        for model in models:
            model(torch.ones(1, 2))
        started[-1].close()
        return told, json.loads((tmp_path / "summary_rank0.json").read_text())["warnings"]

    yield go
    for session in started:
        session.close()


@pytest.mark.parametrize(
    ("spec", "warnings"),
    [
        ({"watch": (Watch(scope=Scope(names=("bags.*", "*.gate"))),)}, []),
        (
            {"watch": (Watch(scope=Scope(names=("*gate", "bugs.0*"))),)},
            ["watch: no layer matches 'bugs.0*'; near: 'bags.0', 'bags.1', 'bags'; there are 6: 'Deep', 'bags',"
             " 'bags.0', 'bags.0.gate', 'bags.1', 'bags.1.gate'"],
        ),
        (
            {"watch": (Watch(scope=Scope(types=("linear", "Bag"))),)},
            ["watch: no layer is of type 'linear'; near: 'Linear'; there are 4: 'Deep', 'ModuleList', 'Bag', 'Linear'"],
        ),
        (
            {"watch": (Watch(scope=Scope(names=("*gate",), types=("Bag",))),)},
            ["watch: no layer matches both the names and the types"],
        ),
        (
            {"watch": (Watch(tensors=("bias",)),)},
            ["watch: nothing was measured: no bias with values was seen; the layers that match: 'bags.0.gate',"
             " 'bags.1.gate'"],
        ),
        ({"watch": (), "follow": (Follow(tensor="features"),)}, []),
        (
            {"watch": (), "follow": (Follow(tensor="featurs"),)},
            ["follow: no module hands on a tensor called 'featurs'; near: 'features'; there are 2: 'features', 'ids';"
             " one that is handed on by its position has no name"],
        ),
        (
            {"watch": (), "follow": (Follow(tensor="ids"),)},
            ["follow: 'ids' holds nothing that can be measured; whole numbers need `bounds`"],
        ),
        ({"watch": (), "follow": (Follow(tensor="ids", bounds=(0, 9)),)}, []),
    ],
)  # fmt: skip
def test_what_meets_nothing_is_told_once(run: Run, spec: dict[str, Any], warnings: list[str]) -> None:
    """Each name, type and tensor, with what is near and what there is; what is met is not."""
    assert run(Deep(), **spec) == (warnings, warnings)


def test_a_stage_that_is_not_there_is_told(run: Run) -> None:
    """A tensor that is followed at no module is not called missing as well."""
    follow = Follow(tensor="features", scope=Scope(names=("tower*",), place="follow.stages"))
    told, warnings = run(Deep(), watch=(), follow=(follow,))
    assert told == warnings and len(told) == 1
    assert told[0].startswith("follow.stages: no layer matches 'tower*'; there are 6: 'Deep'")


def test_a_layer_of_a_later_model_takes_the_warning_back(run: Run) -> None:
    """It was right when it was told; the summary holds what is true at the end."""
    told, warnings = run(Deep(), nn.Linear(2, 2), watch=(Watch(scope=Scope(names=("*Linear",))),))
    assert [one.partition(";")[0] for one in told] == [
        "watch: no layer matches '*Linear'", "no longer true: watch: no layer matches '*Linear'",
    ]  # fmt: skip
    assert warnings == []


def test_more_of_what_there_is_is_not_told_again(run: Run) -> None:
    """The summary has the longer list."""
    told, warnings = run(Deep(), nn.Linear(2, 2), watch=(Watch(scope=Scope(names=("x",))),))
    assert (len(told), len(warnings)) == (1, 1)
    assert ("there are 6" in told[0], "there are 7" in warnings[0]) == (True, True)


def test_a_killed_run_has_the_warning(tmp_path: Path) -> None:
    """It is in the summary once the first step has ended."""
    told: list[str] = []
    spec = Spec(folder=str(tmp_path), step_end="forward", watch=(Watch(scope=Scope(names=("x",))),))
    session = Session(spec, 0, told.append)
    try:
        for _ in range(2):
            nn.Linear(2, 2)(torch.ones(1, 2))
        assert json.loads((tmp_path / "summary_rank0.json").read_text())["warnings"] == told != []
    finally:
        session.close()


def test_a_run_without_modules_is_told(run: Run) -> None:
    """Nothing bad was seen, and nothing was looked at."""
    assert run()[1] == ["nothing was measured: no module was called where it can be seen"]


def test_scopes_that_are_equal_count_for_themselves(run: Run, tmp_path: Path) -> None:
    """Each second layer is the same one for either."""
    scope = Scope(names=("*gate",), stride=2)
    told, _ = run(Deep(), watch=(Watch(scope=scope, tensors=("input",)), Watch(scope=scope, tensors=("output",))))
    rows = [json.loads(line) for line in (tmp_path / "layers_rank0.jsonl").read_text().splitlines()]
    assert [(row["layer"], row["channel"]) for row in rows] == [("bags.0.gate", "input"), ("bags.0.gate", "output")]
    assert told == []


@pytest.mark.parametrize(
    ("env", "start"),
    [
        ({"NANLOG_WATCH_NAMES": "nothing*"}, "NANLOG_WATCH_NAMES: no layer matches 'nothing*'; there is 1: 'Linear'"),
        (
            {"NANLOG_SPEC": '{"watch": [{"scope": {"types": ["linear"]}}]}'},
            "NANLOG_SPEC.watch[0].scope: no layer is of type 'linear'; near: 'Linear'",
        ),
        (
            {"NANLOG_SPEC": '{"follow": [{"tensor": "x", "stages": ["tower"]}]}'},
            "NANLOG_SPEC.follow[0].scope: no layer matches 'tower'",
        ),
        (
            {"NANLOG_SPEC": '{"follow": [{"tensor": "x"}]}'},
            "NANLOG_SPEC.follow[0]: no module hands on a tensor called 'x'",
        ),
    ],
)
def test_the_place_is_the_users(tmp_path: Path, env: dict[str, str], start: str) -> None:
    """Told where the setting stands."""
    told: list[str] = []
    spec = read_spec(None, {**env, "NANLOG_DIR": str(tmp_path)}, pytest.fail)
    session = Session(spec, 0, told.append)
    try:
        nn.Linear(2, 2)(torch.ones(1, 2))
    finally:
        session.close()
    assert len(told) == 1 and told[0].startswith(start)


def test_a_filter_of_a_real_run_that_meets_nothing_is_on_stderr(tmp_path: Path) -> None:
    """And in the summary; the run's own output and end are as ever."""
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\n")
    env = {**os.environ, "NANLOG_DIR": str(tmp_path / "out"), "NANLOG_WATCH_NAMES": "nothing*"}
    done = subprocess.run(
        [sys.executable, "-m", "aorta.instrumentation.layer_numerics", str(script)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    warnings = json.loads((tmp_path / "out" / "summary_rank0.json").read_text())["warnings"]
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"layer_numerics: {warnings[0]}\n")
