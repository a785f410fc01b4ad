"""From settings to a plan: reads the recipe and the registry, and compiles. Only a sweep's main process does this."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aorta._resources import resource_path
from aorta.dag.settings import Settings
from aorta.plan.compile import CompileSettings, RegisteredWorkload, compile_plan
from aorta.plan.model import Plan
from aorta.recipe import RecipeError, RecipeSchemaError, load_recipe, resolved_recipe
from aorta.registry import RegistryError, load_registry
from aorta.registry.workloads import traits, workload_class, workload_names, workload_reference
from aorta.workloads.base import ConfigProblem

STRICT_CODES = frozenset({"unknown_config_key", "bad_config_value", "ran_on_host"})
"""Warnings that ``strict`` turns into errors."""


def find_recipe(path: str) -> Path:
    """Returns the recipe's file; a path below ``recipes/`` that is not here is looked up among the shipped ones."""
    here = Path(path)
    if here.exists() or here.is_absolute() or here.parts[:1] != ("recipes",):
        return here
    shipped = resource_path(*here.parts)
    return shipped if shipped.is_file() else here


def registered_workload(name: str) -> RegisteredWorkload:
    """Looks a workload up without running it; one that cannot be used is described, not raised."""
    reference = workload_reference(name)
    problem = None
    check: Callable[[Mapping[str, Any]], list[ConfigProblem]] = _check_nothing
    if reference is None:
        close = difflib.get_close_matches(name, workload_names(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f" (registered: {', '.join(workload_names())})"
        problem = f"workload {name!r} is not registered here{hint}"
    else:
        try:
            check = getattr(workload_class(name), "check_config", _check_nothing)
        except RegistryError as error:
            problem = str(error)
    return RegisteredWorkload(traits=traits(name), reference=reference, check_config=check, problem=problem)


def _check_nothing(config: Mapping[str, Any]) -> list[ConfigProblem]:
    return []


def plan_recipe(settings: Settings, *, now: datetime, ambient: Mapping[str, str] = os.environ) -> Plan:
    """Compiles the recipe that the settings name.

    Args:
        settings: The sweep's settings.
        now: The time of planning, with its time zone.
        ambient: The environment that trials will inherit.

    Raises:
        RecipeSchemaError: The recipe is invalid, or ``strict`` is set and something in it is warned about.
        RegistryError: Two sources register one name.
    """
    registry = load_registry()
    recipe = load_recipe(find_recipe(settings.recipe), registry)
    plan = compile_plan(
        recipe,
        registered_workload(recipe.workload),
        resolved=resolved_recipe(recipe),
        ambient=ambient,
        settings=CompileSettings(
            trial_timeout_sec=settings.trial_timeout or None,
            order_seed=settings.order_seed,
            strict=settings.strict,
        ),
        created_at=now.astimezone(UTC).isoformat(timespec="microseconds"),
    )
    if settings.strict:
        _refuse_warnings(plan)
    return plan


def _refuse_warnings(plan: Plan) -> None:
    places = {cell.name: f"cells[{index}]" for index, cell in enumerate(plan.cells)}
    errors = []
    for warning in plan.warnings:
        if warning["code"] not in STRICT_CODES:
            continue
        place = places.get(warning["cell"], "recipe")
        part, separator, text = warning["message"].partition(": ")
        if warning["code"] != "ran_on_host" and separator:
            errors.append(RecipeError(path=f"{place}.{part}", message=text))
        else:
            errors.append(RecipeError(path=f"{place}.environment", message=warning["message"]))
    if errors:
        raise RecipeSchemaError(tuple(errors))
