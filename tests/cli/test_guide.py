"""The guide's own recipes and fragments, word for word: they load, and mean what the guide says."""

from __future__ import annotations

import json
import os
import re
import shlex
import textwrap
from pathlib import Path

import pytest
import yaml

from aorta.recipe import Recipe, dump_recipe, parse_recipe
from aorta.registry import Registry, load_registry
from tests.cli.conftest import Aorta

_CHECKOUT = Path(__file__).resolve().parents[2]
_GUIDE = Path(os.environ.get("AORTA_SHARED", _CHECKOUT.parent / "shared")) / "spec" / "recipes-guide.txt"

QUICK_REFERENCE = """\
schema_version: 1                    # required; loader rejects unknown versions
ticket: EXAMPLE-001                  # optional; drives output dir grouping
workload: training                   # required; resolved via aorta.workloads entry-point group
trials: 8                            # required; per-cell trial count
steps: 5000                          # required; per-cell step count
trial_isolation: auto                # optional: auto | in_process | process
save_logs: false                     # optional; when true, dispatcher writes per-trial stdout/stderr files
extra_env:                           # optional; applies to every cell
  GLOBAL_DEBUG_FLAG: "1"             # values must be strings

confound:
  threshold: 1.15                    # default; > 1.15 -> "speed (+N%)" flag
  baseline_cell: baseline-local      # optional; defaults to the first "baseline-*" cell
                                     # or the first cell with mitigations: [none]

cells:
  - name: baseline-local
    mitigations: [none]
    environment: local

  - name: tf32_off-local
    mitigations: [tf32_off]
    environment: local
    collect: []                      # optional per-cell override; disables collection here

  - name: stack-tf32-xnack-local     # mitigation stacking (env vars unioned in list order)
    mitigations: [tf32_off, xnack]
    environment: local
    trials: 16                       # optional per-cell override
    steps: 8000                      # optional per-cell override

  - name: custom-env-override        # one-off env var override for this cell only
    mitigations: [tf32_off]
    environment: local
    extra_env:
      MY_DEBUG_FLAG: "1"
"""
COLLECT_LIST = "collect: [layer_numerics]\n"
COLLECT_OPTIONS = """\
collect:
  layer_numerics:
    NANLOG_SAMPLE_EVERY: "10"
"""
COLLECT_SPEC = """\
collect:
  layer_numerics:
    NANLOG_SPEC: '{"follow":[{"tensor":"embedding_features","at":"stage","bounds":[0,60]}],"sample_every":50}'
"""
WORKLOAD_CONFIG = """\
workload: my_workload
workload_config:
  algorithm: standard       # recipe default
cells:
  - name: baseline-local
    mitigations: [none]
    environment: local
  - name: alternate-local
    mitigations: [none]
    environment: local
    workload_config:
      algorithm: alternate  # cell override
"""
RACE = """\
workload: race
workload_config:
  mode: fsdp            # default | ddp | fsdp
  warmup_iterations: 0
  verify_iterations: 50
  dtype: bfloat16       # bfloat16 | float16 | float32
"""
WHOLE = {
    "schema_version": 1,
    "workload": "training",
    "trials": 1,
    "steps": 1,
    "cells": [{"name": "baseline-local", "mitigations": ["none"], "environment": "local"}],
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


def completed(fragment: str, registry: Registry) -> Recipe:
    """The recipe of a fragment, with what it leaves out."""
    return parse_recipe(dump_recipe({**WHOLE, **yaml.safe_load(fragment)}), registry)


def test_the_quick_reference_loads_as_it_stands(registry: Registry) -> None:
    """Every line of it means what its comment says."""
    recipe = parse_recipe(QUICK_REFERENCE, registry)
    first, second, stacked, custom = recipe.cells
    assert (recipe.ticket, recipe.workload, recipe.trials, recipe.steps) == ("EXAMPLE-001", "training", 8, 5000)
    assert (recipe.confound.threshold, recipe.confound.baseline_cell) == (1.15, first.name)
    assert (first.collect, second.collect) == (None, {})
    assert (stacked.trials, stacked.steps) == (16, 8000)
    assert [mitigation.name for mitigation in stacked.mitigations] == ["tf32_off", "xnack"]
    assert (recipe.extra_env, custom.extra_env) == ({"GLOBAL_DEBUG_FLAG": "1"}, {"MY_DEBUG_FLAG": "1"})


@pytest.mark.parametrize(
    ("fragment", "collectors"),
    [
        (COLLECT_LIST, {"layer_numerics": {}}),
        (COLLECT_OPTIONS, {"layer_numerics": {"NANLOG_SAMPLE_EVERY": "10"}}),
        (COLLECT_SPEC, {"layer_numerics": yaml.safe_load(COLLECT_SPEC)["collect"]["layer_numerics"]}),
    ],
)
def test_collector_fragments_load(registry: Registry, fragment: str, collectors: dict[str, dict[str, str]]) -> None:
    """List form, options, and one structured value."""
    assert completed(fragment, registry).collect == collectors


def test_the_worked_examples_of_collectors_load(registry: Registry) -> None:
    """Every recipe or fragment of one on the page that the guide refers to."""
    page = (_CHECKOUT / "docs" / "layer-numerics.md").read_text("utf-8")
    fragments = re.findall(r"^```yaml\n(collect:.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(fragments) >= 2
    for fragment in fragments:
        (options,) = completed(fragment, registry).collect.values()
        # A structured value must be one: the logger only warns of what it cannot read.
        assert isinstance(json.loads(options.get("NANLOG_SPEC", "{}")), dict)


def test_the_settings_fragment_loads(registry: Registry) -> None:
    """A workload that is not registered is no fault; a cell's setting stands over the recipe's."""
    recipe = completed(WORKLOAD_CONFIG, registry)
    assert [recipe.workload_config, recipe.cells[1].workload_config] == [
        {"algorithm": "standard"},
        {"algorithm": "alternate"},
    ]


def test_the_race_fragment_loads(registry: Registry) -> None:
    """Its settings are the workload's own."""
    assert completed(RACE, registry).workload_config == {
        "mode": "fsdp",
        "warmup_iterations": 0,
        "verify_iterations": 50,
        "dtype": "bfloat16",
    }


@pytest.mark.parametrize(
    ("environment", "name"),
    [({"docker": "acme/box:2"}, "_inline_acb97e4a"), ({"docker": "acme/box:2", "env": {}}, "_inline_acb97e4a")],
)
def test_an_image_in_place_has_the_guide_s_name(registry: Registry, environment: dict[str, object], name: str) -> None:
    """Without variables, or with an empty mapping of them, the image alone makes the name."""
    cell = {"name": "baseline-local", "mitigations": ["none"], "environment": environment}
    assert parse_recipe(dump_recipe({**WHOLE, "cells": [cell]}), registry).cells[0].environment.name == name


FLAG_MODE = """\
aorta sweep run --mode matrix \\
  --workload training \\
  --mitigation-axis none,tf32_off,xnack \\
  --environment-axis local \\
  --trials 2 --steps 100 \\
  --ticket EXAMPLE-151
"""


@pytest.mark.parametrize(
    ("axis", "places"), [("local", ["local"]), ("local,image:rocm/pytorch:nightly", ["local", "_inline_5ed7b51f"])]
)
def test_the_flag_mode_command_makes_its_matrix(aorta: Aorta, axis: str, places: list[str]) -> None:
    """The guide's own line, and its inline image: each mitigation in each environment."""
    words = shlex.split(FLAG_MODE.replace("\\\n", " "))[1:]
    words[words.index("local")] = axis
    ended = aorta(*words, "--dry-run")
    assert ended.exit_code == 0
    names = [line.split()[0] for line in ended.stdout.splitlines() if " 100 " in line]
    assert names == [f"{name}-{place}" for place in places for name in ("none", "tf32_off", "xnack")]
    assert "EXAMPLE-151" in ended.stdout


def test_the_race_recipe_is_checked_without_launcher_and_gpus(aorta: Aorta) -> None:
    """The guide's own dry-run: the recipe is valid, and the workload is registered."""
    ended = aorta(*shlex.split("sweep run --recipe recipes/training/example-fsdp-smoke.yaml --dry-run"))
    assert ended.exit_code == 0
    assert "race (registered: aorta.workloads.race:RaceWorkload)" in ended.stdout


@pytest.mark.shared
@pytest.mark.skipif(not _GUIDE.is_file(), reason="no guide: set AORTA_SHARED, or put it at ../shared")
@pytest.mark.parametrize(
    "fragment", [QUICK_REFERENCE, COLLECT_LIST, COLLECT_OPTIONS, COLLECT_SPEC, WORKLOAD_CONFIG, RACE, FLAG_MODE]
)
def test_the_fragments_are_the_guide_s(fragment: str) -> None:
    """Line for line, but for how far the guide indents them."""
    guide = [line.strip() for line in textwrap.dedent(_GUIDE.read_text("utf-8")).splitlines()]
    lines = [line.strip() for line in fragment.splitlines()]
    starts = [place for place in range(len(guide)) if guide[place : place + len(lines)] == lines]
    assert starts
