"""Hand-made recipes and workloads: plans are tested without files, registries or Snakemake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from aorta.plan.compile import CompileSettings, RegisteredWorkload, compile_plan
from aorta.plan.model import Plan
from aorta.recipe.model import Cell, Confound, Recipe
from aorta.registry.model import Environment, Mitigation
from aorta.workloads.base import ConfigProblem, Workload

CREATED_AT = "2026-04-28T14:12:03.000000+00:00"

NONE = Mitigation(name="none", env={}, source_package="aorta")
TF32_OFF = Mitigation(name="tf32_off", env={"DISABLE_TF32": "1"}, source_package="aorta")
XNACK = Mitigation(name="xnack", env={"HSA_XNACK": "1"}, source_package="aorta")
LOCAL = Environment(name="local", source_package="aorta")
IMAGE = Environment(name="_inline_acb97e4a", docker="acme/box:2", env={"HSA_XNACK": "0", "BASE": "image"})


class Checked(Workload):
    """A workload that knows one setting."""

    @classmethod
    def check_config(cls, config: Mapping[str, Any]) -> list[ConfigProblem]:
        return [
            ConfigProblem(key=key, message="unknown key; did you mean 'known'?") for key in config if key != "known"
        ]


def registered(workload: type[Workload] = Checked) -> RegisteredWorkload:
    return RegisteredWorkload(traits=workload, reference="plugin:Checked", check_config=workload.check_config)


def make_recipe(**changes: Any) -> Recipe:
    cells = (
        Cell(name="baseline-local", mitigations=(NONE,), environment=LOCAL),
        Cell(name="stacked", mitigations=(TF32_OFF, XNACK), environment=LOCAL, trials=5, steps=9),
        Cell(
            name="image",
            mitigations=(XNACK,),
            environment=IMAGE,
            extra_env={"SITE": "cell"},
            workload_config={"known": 2},
            collect={},
        ),
    )
    values: dict[str, Any] = {
        "ticket": "WIDGET-77",
        "workload": "checked",
        "trials": 3,
        "steps": 40,
        "extra_env": {"SITE": "recipe", "DISABLE_TF32": "0"},
        "collect": {"layer_numerics": {"NANLOG_SAMPLE_EVERY": "10"}},
        "workload_config": {"known": 1, "nested": {"a": [1, 2.5, None, True]}},
        "confound": Confound(baseline_cell="baseline-local"),
        "cells": cells,
        "source": "recipes/widget.yaml",
    }
    return Recipe(**{**values, **changes})


@pytest.fixture
def compiled() -> Callable[..., Plan]:
    """Compiles a hand-made recipe, with changes to it, its settings or its surroundings."""

    def compile_(
        recipe: Recipe | None = None,
        *,
        workload: RegisteredWorkload | None = None,
        ambient: Mapping[str, str] | None = None,
        resolved: Mapping[str, Any] | None = None,
        created_at: str = CREATED_AT,
        **settings: Any,
    ) -> Plan:
        recipe = recipe or make_recipe()
        return compile_plan(
            recipe,
            workload or registered(),
            resolved=resolved or {"workload": recipe.workload, "trials": recipe.trials, "steps": recipe.steps},
            ambient=ambient or {},
            settings=CompileSettings(**settings),
            created_at=created_at,
        )

    return compile_
