"""From settings to a plan: reads the recipe and the registry, and compiles. Only a sweep's main process does this."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aorta.dag.launching import find_world
from aorta.dag.settings import Settings, SettingsError
from aorta.plan.compile import CompileSettings, cell_request, compile_plan
from aorta.plan.findings import STRICT_CODES, Finding, RegisteredWorkload, recipe_findings
from aorta.plan.model import Plan
from aorta.recipe import Recipe, RecipeError, RecipeSchemaError, load_recipe, resolved_recipe
from aorta.recipe.loader import find_recipe
from aorta.registry import Registry, RegistryError, load_registry
from aorta.registry.names import did_you_mean, short
from aorta.registry.workloads import WorkloadTraits, traits, workload_class, workload_names, workload_reference
from aorta.run.collectors import KNOWN_RECIPES
from aorta.workloads.base import ConfigProblem, TrialShape


def registered_workload(name: str) -> RegisteredWorkload:
    """Looks a workload up without running it; one that cannot be used is described, not raised."""
    reference = workload_reference(name)
    problem = None
    check: Callable[[Mapping[str, Any]], list[ConfigProblem]] = _check_nothing
    variables: Callable[[Mapping[str, Any]], Mapping[str, str]] = _no_variables
    check_trial: Callable[[Mapping[str, Any], TrialShape], list[ConfigProblem]] = _check_no_trial
    if reference is None:
        close = difflib.get_close_matches(name, workload_names(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f" (registered: {', '.join(workload_names())})"
        problem = f"workload {name!r} is not registered here{hint}"
    else:
        try:
            cls = workload_class(name)
            check = getattr(cls, "check_config", _check_nothing)
            variables = getattr(cls, "process_env", _no_variables)
            check_trial = getattr(cls, "check_trial", _check_no_trial)
        except RegistryError as error:
            problem = str(error)
    found = traits(name)
    return RegisteredWorkload(
        traits=found,
        reference=reference,
        check_config=check,
        problem=problem,
        remarks=found.remarks,
        process_env=variables,
        check_trial=check_trial,
    )


def _check_nothing(config: Mapping[str, Any]) -> list[ConfigProblem]:
    return []


def _check_no_trial(config: Mapping[str, Any], shape: TrialShape) -> list[ConfigProblem]:
    return []


def _no_variables(config: Mapping[str, Any]) -> Mapping[str, str]:
    return {}


NO_WORKLOAD = RegisteredWorkload(traits=WorkloadTraits(), reference=None, check_config=_check_nothing)
"""What stands for the workload of a recipe that wraps a command."""


def plan_recipe(
    settings: Settings,
    *,
    now: datetime,
    ambient: Mapping[str, str] = os.environ,
    load: Callable[[Registry], Recipe] | None = None,
    to_run: bool = True,
) -> Plan:
    """Compiles the recipe that the settings name.

    Args:
        settings: The sweep's settings.
        now: The time of planning, with its time zone.
        ambient: The environment that trials will inherit.
        load: Makes the recipe where it does not come from the file that the settings name.
        to_run: Whether the plan is to be run, so that a recipe that wraps a command needs one.

    Raises:
        RecipeSchemaError: The recipe is invalid, or ``strict`` is set and something in it is warned about.
        RegistryError: A sidecar is not valid, or two sources register one name.
        SettingsError: ``collect`` names something that is no collector, or the settings do not suit the recipe.
    """
    registry = load_registry(settings.mitigations_files)
    recipe = load_recipe(find_recipe(settings.recipe), registry) if load is None else load(registry)
    if settings.collect is not None:
        recipe = override_collectors(recipe, settings.collect)
    problems = command_problems(recipe, settings, to_run=to_run)
    if problems:
        raise SettingsError(problems)
    world = find_world(settings, ambient)
    workload = registered_workload(recipe.workload) if recipe.probe is None else NO_WORKLOAD
    plan = compile_plan(
        recipe,
        workload,
        resolved=resolved_recipe(recipe),
        ambient=ambient,
        settings=CompileSettings(
            trial_timeout_sec=settings.trial_timeout or None,
            order_seed=settings.order_seed,
            strict=settings.strict,
            sidecars=tuple(map(str, settings.mitigations_files)),
            nnodes=world.nnodes,
            nproc_per_node=world.nproc_per_node,
            rank_logs=settings.rank_logs,
            command={"argv": list(settings.command), "cwd": os.getcwd()} if settings.command else None,
        ),
        created_at=now.astimezone(UTC).isoformat(timespec="microseconds"),
    )
    if settings.strict:
        _refuse_findings(recipe, plan, workload)
    return plan


def look_over(recipe: Recipe) -> list[Finding]:
    """Returns what a run of a recipe would warn about, as far as it does not depend on how the run is started."""
    workload = registered_workload(recipe.workload) if recipe.probe is None else NO_WORKLOAD
    settings = CompileSettings(nproc_per_node=0)
    requests = [cell_request(recipe, cell, index, workload, settings) for index, cell in enumerate(recipe.cells)]
    return recipe_findings(recipe, requests, workload)


def command_problems(recipe: Recipe, settings: Settings, *, to_run: bool) -> list[str]:
    """Says where the settings do not suit a recipe that wraps a command, or one that does not; a line each."""
    source = recipe.source
    if recipe.probe is None:
        if not settings.command:
            return []
        return [
            f"command: {shlex.join(settings.command)!r}: a command belongs to recipes that wrap one (mode: probe), and "
            f"{source} runs the workload {recipe.workload!r}; leave the command out"
        ]
    problems = []
    if to_run and not settings.command:
        problems.append(
            f"command: {source} wraps a command (mode: probe), and none was given; add it at the end: "
            "-- COMMAND ARGUMENT... (with snakemake: --config command='COMMAND ARGUMENT...')"
        )
    defaults = Settings(recipe=settings.recipe)
    remedies = {
        "trial_timeout": "set timeout_per_trial in the recipe",
        "nodes": "the command starts its own ranks",
        "nproc_per_node": "the command starts its own ranks",
        "rank_logs": "the command's whole output is kept",
    }
    problems += [
        f"{name}: not for a recipe that wraps a command (mode: probe): {remedy}"
        for name, remedy in remedies.items()
        if getattr(settings, name) != getattr(defaults, name)
    ]
    return problems


def override_collectors(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """Returns a recipe in which every cell has exactly these collectors, with their default options.

    Args:
        recipe: A loaded recipe; what it and its cells say of collectors is dropped.
        names: Names of collectors; none at all attaches none.

    Raises:
        SettingsError: A name is not a collector's.
    """
    problems = [
        f"collect: {short(name)} is not a known collector{did_you_mean(name, KNOWN_RECIPES)} "
        f"(known: {', '.join(KNOWN_RECIPES)})"
        for name in names
        if name not in KNOWN_RECIPES
    ]
    if problems:
        raise SettingsError(problems)
    cells = tuple(replace(cell, collect=None) for cell in recipe.cells)
    return replace(recipe, collect={name: {} for name in names}, cells=cells)


def _refuse_findings(recipe: Recipe, plan: Plan, workload: RegisteredWorkload) -> None:
    requests = [cell.request or {} for cell in plan.cells]
    errors = [
        RecipeError(path=finding.place, message=finding.message)
        for finding in recipe_findings(recipe, requests, workload)
        if finding.code in STRICT_CODES
    ]
    if errors:
        raise RecipeSchemaError(tuple(errors))
