"""What a loaded recipe holds: resolved names, the chosen baseline, merged forms."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aorta.recipe import Recipe, RecipeSchemaError, parse_recipe
from aorta.registry import Registry, inline_environment

_HEAD = "schema_version: 1\nworkload: training\ntrials: 2\nsteps: 3\n"


def _parse(registry: Registry, cells: Sequence[str], head: str = "") -> Recipe:
    rows = "".join(f"  - {cell}\n" for cell in cells)
    return parse_recipe(f"{_HEAD}{head}cells:\n{rows}", registry)


def _cell(name: str, mitigations: str = "[none]", more: str = "") -> str:
    return f"{{name: {name}, mitigations: {mitigations}, environment: local{more}}}"


@pytest.mark.parametrize(
    ("cells", "head", "expected"),
    [
        ([_cell("a"), _cell("baseline-b", "[xnack]")], "", "baseline-b"),
        ([_cell("a", "[xnack]"), _cell("b"), _cell("c")], "", "b"),
        ([_cell("a", "[xnack]")], "", "a"),
        ([_cell("baseline-a"), _cell("b")], "confound: {baseline_cell: b}\n", "b"),
    ],
    ids=["first named baseline-*", "first with [none]", "only cell", "named"],
)
def test_baseline_cell_is_chosen_in_the_guide_s_order(
    registry: Registry, cells: list[str], head: str, expected: str
) -> None:
    """A name beats the prefix, the prefix beats [none], and a lone cell is its own baseline."""
    assert _parse(registry, cells, head).confound.baseline_cell == expected


def test_defaults_are_filled_in(registry: Registry) -> None:
    """What the recipe leaves out has the documented defaults."""
    recipe = _parse(registry, [_cell("a")])
    assert (recipe.trial_isolation, recipe.save_logs, recipe.confound.threshold) == ("auto", False, 1.15)
    assert (recipe.ticket, recipe.extra_env, recipe.collect, recipe.workload_config) == (None, {}, {}, {})


def test_mitigations_keep_the_order_of_the_recipe(registry: Registry) -> None:
    """A stack is resolved through the registry, in list order."""
    cell = _parse(registry, [_cell("a", "[xnack, tf32_off]")]).cells[0]
    assert [dict(mitigation.env) for mitigation in cell.mitigations] == [{"HSA_XNACK": "1"}, {"DISABLE_TF32": "1"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        (", collect: null", None),
        (", collect: []", {}),
        (", collect: {}", {}),
        (", collect: [layer_numerics]", {"layer_numerics": {}}),
        (", collect: {layer_numerics: null}", {"layer_numerics": {}}),
        (", collect: {layer_numerics: {NANLOG_DIR: x}}", {"layer_numerics": {"NANLOG_DIR": "x"}}),
    ],
)
def test_cell_collect_tells_absent_from_empty(registry: Registry, text: str, expected: object) -> None:
    """An absent key inherits, and an empty one disables; both forms read alike."""
    assert _parse(registry, [_cell("a", more=text)]).cells[0].collect == expected


def test_inline_image_is_resolved_with_its_variables(registry: Registry) -> None:
    """The shorthand gives the environment that the registry makes of the same image and variables."""
    recipe = _parse(registry, ["{name: a, mitigations: [none], environment: {docker: acme/box, env: {A: '1'}}}"])
    assert recipe.cells[0].environment == inline_environment("acme/box", {"A": "1"})


def test_inline_images_with_one_digest_are_refused(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images must not share a folder because their short digests happen to be equal."""

    def same_digest(image: str, env: object = None) -> object:
        real = inline_environment(image)
        return type(real)(name="_inline_00000000", docker=image)

    monkeypatch.setattr("aorta.recipe.rules.inline_environment", same_digest)
    cells = [f"{{name: {name}, mitigations: [none], environment: {{docker: acme/{name}}}}}" for name in "ab"]
    with pytest.raises(RecipeSchemaError, match=r"cells\[1\].environment: has the same automatic name"):
        _parse(registry, cells)


def test_aliased_mappings_are_copies(registry: Registry) -> None:
    """Changing one cell's data cannot reach another through a YAML alias."""
    recipe = _parse(
        registry,
        [
            "{name: a, mitigations: [none], environment: local, workload_config: &w {deep: {x: 1}}}",
            "{name: b, mitigations: [none], environment: local, workload_config: *w}",
        ],
    )
    recipe.cells[0].workload_config["deep"]["x"] = 2
    assert recipe.cells[1].workload_config == {"deep": {"x": 1}}


def test_mitigation_bundle_with_launcher_identity_is_refused(registry: Registry) -> None:
    """A rank cannot be smuggled in through a mitigation either."""
    from aorta.registry import Mitigation, Registry

    rank = Mitigation(name="rank0", env={"RANK": "0"}, source_package="test")
    with_rank = Registry(mitigations={**registry.mitigations, "rank0": rank}, environments=registry.environments)
    with pytest.raises(RecipeSchemaError, match=r"^cells\[0\].mitigations: RANK \(set by 'rank0'\)"):
        _parse(with_rank, [_cell("a", "[rank0]")], "trial_isolation: process\n")


def test_broken_plugin_is_a_fault_only_where_it_is_named(registry: Registry) -> None:
    """A recipe that names a broken plugin's mitigation is told why; others do not notice it."""
    from aorta.registry import Registry

    broken = Registry(
        mitigations=registry.mitigations,
        environments=registry.environments,
        broken_mitigations={"acme_fix": "the plugin acme cannot be loaded: ImportError: no libacme"},
    )
    assert _parse(broken, [_cell("a")]).cells
    with pytest.raises(RecipeSchemaError, match=r"cells\[0\].mitigations: 'acme_fix' cannot be used: .*no libacme"):
        _parse(broken, [_cell("a", "[acme_fix]")])


def test_faults_carry_their_lines(registry: Registry) -> None:
    """Each error has the line of its value, through aliases too."""
    with pytest.raises(RecipeSchemaError) as caught:
        _parse(registry, [_cell("a", "[nope]"), _cell("b", more=", steps: 0")])
    assert [(fault.path, fault.line) for fault in caught.value.errors] == [
        ("cells[0].mitigations", 6),
        ("cells[1].steps", 7),
    ]
