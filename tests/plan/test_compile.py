"""A recipe becomes a plan: precedence, fingerprints, warnings, and the golden plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aorta._jsonio import json_digest
from aorta.plan.compile import RegisteredWorkload
from aorta.plan.model import Plan, PlanFileError
from aorta.registry.model import Environment, Mitigation
from aorta.workloads.base import ConfigProblem, TrialShape, Workload
from tests.plan.conftest import LOCAL, NONE, Checked, make_recipe, registered

GOLDEN = Path(__file__).parent / "golden" / "plan.json"

Compile = Callable[..., Plan]


def request(plan: Plan, cell: str) -> dict[str, Any]:
    found = {planned.name: planned.request for planned in plan.cells}[cell]
    assert found is not None
    return dict(found)


def test_golden_plan(compiled: Compile) -> None:
    """The whole plan of a fixed recipe, cell requests included, is what it was."""
    plan = compiled(trial_timeout_sec=60.0, order_seed=7)
    made = {"plan": plan.to_json(), "requests": [cell.request for cell in plan.cells]}
    assert made == json.loads(GOLDEN.read_text("utf-8"))


def test_each_variable_keeps_the_layer_that_set_it(compiled: Compile) -> None:
    """environment < mitigations in list order < recipe extra_env < cell extra_env."""
    assert request(compiled(), "image")["env"] == {
        "BASE": {"value": "image", "layer": "environment:_inline_acb97e4a"},
        "DISABLE_TF32": {"value": "0", "layer": "recipe.extra_env"},
        "HSA_XNACK": {"value": "1", "layer": "mitigation:xnack"},
        "SITE": {"value": "cell", "layer": "cell.extra_env"},
    }


def test_what_the_workload_asks_for_is_the_lowest_layer(compiled: Compile) -> None:
    """A workload's own variables follow each cell's settings and give way to whatever else sets them."""

    def asks(config: Any) -> dict[str, str]:
        return {"SITE": "workload", "KNOWN": str(config["known"])}

    plan = compiled(workload=replace(registered(), process_env=asks))
    assert request(plan, "image")["env"]["KNOWN"] == {"value": "2", "layer": "workload:checked"}
    assert request(plan, "image")["env"]["SITE"]["value"] == "cell"
    assert request(plan, "stacked")["env"]["KNOWN"]["value"] == "1"


@pytest.mark.parametrize("answer", [None, {"A": 1}, 3])
def test_a_workload_that_asks_for_nonsense_gets_nothing_and_is_named(compiled: Compile, answer: Any) -> None:
    """A plugin's mistake in process_env() is told once, and its recipe can still run."""
    plan = compiled(workload=replace(registered(), process_env=lambda config: answer))
    assert "A" not in request(plan, "image")["env"]
    assert [w["code"] for w in plan.warnings].count("process_env_unread") == 1


def test_cell_settings_replace_or_merge_with_the_recipe(compiled: Compile) -> None:
    """Trials, steps and collectors replace; workload_config merges key by key."""
    plan = compiled()
    assert (request(plan, "stacked")["trials"], request(plan, "stacked")["steps"]) == (5, 9)
    assert request(plan, "image")["workload_config"] == {"known": 2, "nested": {"a": [1, 2.5, None, True]}}
    assert request(plan, "image")["collect"] == {}
    assert request(plan, "stacked")["collect"] == {"layer_numerics": {"NANLOG_SAMPLE_EVERY": "10"}}


@pytest.mark.parametrize("isolation", ["process", "in_process"])
def test_auto_isolation_follows_the_workload(compiled: Compile, isolation: str) -> None:
    """`auto` takes the workload's own default."""

    class Own(Checked):
        isolation_default = isolation  # type: ignore[assignment]

    assert request(compiled(workload=registered(Own)), "stacked")["isolation"] == isolation


@pytest.mark.parametrize(
    "changes",
    [
        {"ticket": None},
        {"trials": 30},
        {"save_logs": True},
        {"confound": replace(make_recipe().confound, threshold=2.0)},
        {"source": "elsewhere.yaml"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_fingerprints_ignore_what_cannot_change_a_result(compiled: Compile, changes: dict[str, Any]) -> None:
    """Ticket, number of trials, logs, baseline rules and the file's name rerun nothing."""
    before = [cell.fingerprint for cell in compiled().cells]
    assert [cell.fingerprint for cell in compiled(make_recipe(**changes)).cells] == before


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": "other"},
        {"steps": 41},
        {"trial_isolation": "in_process"},
        {"extra_env": {"SITE": "recipe", "DISABLE_TF32": "1"}},
        {"workload_config": {"known": 1, "nested": {"a": [2.5, 1, None, True]}}},
        {"collect": {}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_fingerprints_change_with_what_can_change_a_result(compiled: Compile, changes: dict[str, Any]) -> None:
    """Workload, steps, isolation, variables, settings (order in lists too) and collectors make results stale."""
    before = compiled().cells[0].fingerprint
    assert compiled(make_recipe(**changes)).cells[0].fingerprint != before


def test_a_cells_own_change_leaves_the_others_current(compiled: Compile) -> None:
    """A changed step count of one cell makes only that cell's trials stale."""
    recipe = make_recipe()
    changed = replace(recipe, cells=(recipe.cells[0], replace(recipe.cells[1], steps=10), recipe.cells[2]))
    same = [a.fingerprint == b.fingerprint for a, b in zip(compiled().cells, compiled(changed).cells, strict=True)]
    assert same == [True, False, True]


def test_an_image_is_part_of_the_fingerprint_but_a_name_is_not(compiled: Compile) -> None:
    """Two names of one place are the same place; two images are not."""
    recipe = make_recipe()

    def first_fingerprint(environment: Environment) -> str:
        cell = replace(recipe.cells[0], environment=environment)
        return compiled(replace(recipe, cells=(cell, *recipe.cells[1:]))).cells[0].fingerprint

    assert first_fingerprint(replace(LOCAL, name="other")) == first_fingerprint(LOCAL)
    assert first_fingerprint(replace(LOCAL, docker="a:1")) != first_fingerprint(replace(LOCAL, docker="a:2"))


def test_the_plan_key_covers_cells_trials_and_fingerprints_in_any_order(compiled: Compile) -> None:
    """The same set of (cell, trial, fingerprint) is the same plan."""
    recipe = make_recipe()
    key = compiled().key
    assert compiled(replace(recipe, cells=tuple(reversed(recipe.cells)))).key == key
    assert compiled(replace(recipe, trials=4)).key != key
    assert compiled(replace(recipe, steps=4)).key != key


def test_a_huge_number_of_trials_costs_nothing(compiled: Compile) -> None:
    """A recipe with 10**40 trials compiles at once: a plan never lists its trials."""
    assert compiled(make_recipe(trials=10**40)).trial_count == 2 * 10**40 + 5


def test_an_unknown_key_of_the_recipe_is_warned_about_once(compiled: Compile) -> None:
    """A key that the workload would drop is a lever that was never pulled; every cell inherits this one."""
    (warning,) = [w for w in compiled().warnings if w["code"] == "unknown_config_key"]
    assert warning["cell"] is None
    assert warning["message"] == "workload_config.nested: unknown key; did you mean 'known'?"


def test_an_unknown_key_of_a_cell_names_the_cell(compiled: Compile) -> None:
    """Where only some cells have the key, each of them is named."""
    recipe = make_recipe(workload_config={})
    cells = tuple(replace(cell, workload_config={"typo: x.y": 1}) for cell in recipe.cells[1:])
    found = compiled(replace(recipe, cells=(recipe.cells[0], *cells))).warnings
    assert [(w["cell"], w["message"]) for w in found if w["code"] == "unknown_config_key"] == [
        ("stacked", "workload_config.typo: x.y: unknown key; did you mean 'known'?"),
        ("image", "workload_config.typo: x.y: unknown key; did you mean 'known'?"),
    ]


@pytest.mark.parametrize(("ranks", "seen"), [(4, (40, 4, 4)), (1, (40, None, None))])
def test_a_workload_sees_the_ranks_that_its_trials_will_have(
    compiled: Compile, ranks: int, seen: tuple[int | None, ...]
) -> None:
    """What does not fit them is a warning; too few ranks are not taken for the number that will be."""

    class Ranked(Workload):
        launch_mode = "distributed"
        min_world_size = 2

        @classmethod
        def check_trial(cls, config: Any, shape: TrialShape) -> list[ConfigProblem]:
            told = f"{shape.steps} {shape.world_size} {shape.local_world_size}"
            return [ConfigProblem(key="known", message=told, code="topology_mismatch")]

    plan = compiled(workload=replace(registered(Ranked), check_trial=Ranked.check_trial), nproc_per_node=ranks)
    told = [
        w["message"]
        for w in plan.warnings
        if w["code"] == "topology_mismatch" and w["cell"] in (None, "baseline-local")
    ]
    assert told == ["workload_config.known: {} {} {}".format(*seen)]


@pytest.mark.parametrize("answer", [None, ["text"], 3])
def test_a_check_that_answers_nonsense_stops_nobody(compiled: Compile, answer: Any) -> None:
    """A plugin's own mistake is told, and its recipe can still run."""

    class Careless(Workload):
        @classmethod
        def check_config(cls, config: Any) -> Any:
            return answer

    found = [w for w in compiled(workload=registered(Careless)).warnings if w["code"] == "config_unchecked"]
    assert len(found) == 1


def test_a_place_that_the_workload_ignores_is_warned_about(compiled: Compile) -> None:
    """A cell that names an image which nothing starts really runs on the host."""
    (warning,) = [w for w in compiled().warnings if w["code"] == "ran_on_host"]
    assert warning["cell"] == "image"
    assert "docker 'acme/box:2'" in warning["message"]


def test_a_workload_that_acts_on_images_is_believed(compiled: Compile) -> None:
    """The class attribute says which fields the workload honours."""

    class Docker(Checked):
        acts_on = frozenset({"docker"})

    assert not [w for w in compiled(workload=registered(Docker)).warnings if w["code"] == "ran_on_host"]


def test_an_unregistered_workload_is_a_warning(compiled: Compile) -> None:
    """The recipe is valid; its trials will say that the workload is missing."""
    missing = RegisteredWorkload(
        traits=Workload,
        reference=None,
        check_config=lambda config: [],
        problem="workload 'nope' is not registered",
    )
    plan = compiled(workload=missing)
    assert [w["code"] for w in plan.warnings] == ["workload_unavailable"]
    assert request(plan, "image")["workload_ref"] is None


def test_variables_inherited_by_cells_that_do_not_set_them_are_warned_about(compiled: Compile) -> None:
    """A mitigation's variable in the launching shell would reach the baseline too."""
    plan = compiled(ambient={"HSA_XNACK": "1", "HOME": "/root"})
    (warning,) = [w for w in plan.warnings if w["code"] == "ambient_variable"]
    assert "HSA_XNACK is set to '1'" in warning["message"]
    assert "baseline-local" in warning["message"]


def test_nobody_is_told_to_unset_what_torchrun_sets(compiled: Compile) -> None:
    """A thread count in a process of torchrun's is not the user's to unset; another variable still is."""
    recipe = make_recipe()
    cells = (replace(recipe.cells[0], extra_env={"OMP_NUM_THREADS": "4"}), *recipe.cells[1:])
    told = [
        next(
            w["message"]
            for w in compiled(replace(recipe, cells=cells), ambient=ambient).warnings
            if "OMP_NUM" in w["message"]
        )
        for ambient in ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, {"OMP_NUM_THREADS": "1"})
    ]
    assert "torchrun sets it where nobody else does" in told[0]
    assert ["unset it" in message for message in told] == [False, True]


def test_a_plan_survives_its_file(compiled: Compile) -> None:
    """Reading plan.json back gives the same plan, less the requests that cell.json holds."""
    plan = compiled()
    assert Plan.from_json(json.loads(json.dumps(plan.to_json())), source="plan.json") == plan


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value.update(schema_version=2),
        lambda value: value.pop("cells"),
        lambda value: value["cells"][0].update(trials=0),
        lambda value: value["cells"][0].update(trials=True),
        lambda value: value["cells"][0].update(fingerprint="0" * 64),
        lambda value: value.update(warnings=3),
        lambda value: value.update(environments=[]),
    ],
)
def test_a_damaged_plan_is_refused_by_name(compiled: Compile, damage: Callable[[dict[str, Any]], object]) -> None:
    """A wrong plan would give wrong rates, so nothing in it is guessed."""
    value = json.loads(json.dumps(compiled().to_json()))
    damage(value)
    with pytest.raises(PlanFileError, match=r"^runs/1/plan\.json: "):
        Plan.from_json(value, source="runs/1/plan.json")


def test_mitigation_stacking_is_ordered(compiled: Compile) -> None:
    """Where two agreeing mitigations set one variable, the later one is its layer."""
    recipe = make_recipe()
    again = Mitigation(name="again", env={"HSA_XNACK": "1"}, source_package="plugin")
    cell = replace(
        recipe.cells[0], mitigations=(NONE, Mitigation(name="x", env={"HSA_XNACK": "1"}, source_package="p"), again)
    )
    plan = compiled(replace(recipe, cells=(cell,)))
    assert request(plan, "baseline-local")["env"]["HSA_XNACK"]["layer"] == "mitigation:again"


def test_the_digest_is_of_canonical_json() -> None:
    """Key order does not matter, list order does."""
    assert json_digest({"a": 1, "b": [1, 2]}) == json_digest({"b": [1, 2], "a": 1})
    assert json_digest([1, 2]) != json_digest([2, 1])
