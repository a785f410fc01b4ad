"""A recipe back to YAML: the snapshot that a run keeps, and that can be run again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from aorta.recipe.model import Cell, Collectors, Probe, Recipe, StopAfter
from aorta.registry.model import Environment
from aorta.registry.registry import INLINE_PREFIX

# Words that read as the same string in YAML 1.1, YAML 1.2 and to a person; all else is quoted.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_NOT_PLAIN = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})

# libyaml takes a C int; beyond this width it would fold a long string over lines.
_WIDTH = 2**31 - 1


def resolved_recipe(recipe: Recipe) -> dict[str, Any]:
    """Returns a recipe as plain data that the recipe schema accepts and that loads to an equal recipe.

    Defaults and the chosen baseline are written out; names stay names, so the same registry must be there to load it.
    An inline image comes back as ``{docker: ..., env: ...}``.

    Args:
        recipe: A loaded recipe.
    """
    data: dict[str, Any] = {"schema_version": recipe.schema_version}
    if recipe.probe is not None:
        data["mode"] = "probe"
    if recipe.ticket is not None:
        data["ticket"] = recipe.ticket
    if recipe.probe is not None:
        return data | _probe(recipe, recipe.probe)
    data |= {
        "workload": recipe.workload,
        "trials": recipe.trials,
        "steps": recipe.steps,
        "trial_isolation": recipe.trial_isolation,
        "save_logs": recipe.save_logs,
    }
    if recipe.extra_env:
        data["extra_env"] = dict(recipe.extra_env)
    if recipe.collect:
        data["collect"] = _collect(recipe.collect)
    if recipe.workload_config:
        data["workload_config"] = _copy(recipe.workload_config)
    if recipe.stop_after.events is not None:
        data["stop_after"] = _stop_after(recipe.stop_after)
    if recipe.retry_errors:
        data["retry_errors"] = recipe.retry_errors
    if recipe.resources:
        data["resources"] = dict(recipe.resources)
    data["confound"] = {"threshold": recipe.confound.threshold, "baseline_cell": recipe.confound.baseline_cell}
    data["cells"] = [_cell(cell) for cell in recipe.cells]
    return data


def _probe(recipe: Recipe, probe: Probe) -> dict[str, Any]:
    """Returns what follows the ticket in a recipe that wraps a command."""
    data: dict[str, Any] = {
        "trials": recipe.trials,
        "mitigation_axis": list(probe.mitigation_axis),
        "diagnostic_axis": list(probe.diagnostic_axis),
        "env_passthrough_mode": probe.env_passthrough_mode,
        "confound": {"threshold": recipe.confound.threshold, "baseline_cell": recipe.confound.baseline_cell},
    }
    if recipe.collect:
        data["collect"] = _collect(recipe.collect)
    if probe.collect_paths:
        data["collect_paths"] = list(probe.collect_paths)
    if recipe.stop_after.events is not None:
        data["stop_after"] = _stop_after(recipe.stop_after)
    if recipe.resources:
        data["resources"] = dict(recipe.resources)
    data |= {key: _copy(value) for key, value in probe.settings.items() if value not in (None, [])}
    if probe.redaction:
        data["redaction"] = _copy(probe.redaction)
    return data


def _cell(cell: Cell) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": cell.name,
        "mitigations": [mitigation.name for mitigation in cell.mitigations],
        "environment": _environment(cell.environment),
    }
    if cell.trials is not None:
        data["trials"] = cell.trials
    if cell.steps is not None:
        data["steps"] = cell.steps
    if cell.extra_env:
        data["extra_env"] = dict(cell.extra_env)
    if cell.collect is not None:
        data["collect"] = _collect(cell.collect)
    if cell.workload_config:
        data["workload_config"] = _copy(cell.workload_config)
    if cell.stop_after is not None:
        data["stop_after"] = _stop_after(cell.stop_after)
    if cell.retry_errors is not None:
        data["retry_errors"] = cell.retry_errors
    if cell.resources:
        data["resources"] = dict(cell.resources)
    return data


def _stop_after(rule: StopAfter) -> dict[str, Any]:
    if rule.events is None:
        return {}
    data: dict[str, Any] = {"events": rule.events}
    if rule.max_trials is not None:
        data["max_trials"] = rule.max_trials
    return data | {"event_verdict": rule.event_verdict}


def _environment(environment: Environment) -> str | dict[str, Any]:
    if not environment.name.startswith(INLINE_PREFIX):
        return environment.name
    inline: dict[str, Any] = {"docker": environment.docker}
    if environment.env:
        inline["env"] = dict(environment.env)
    return inline


def _collect(collect: Collectors) -> list[str] | dict[str, dict[str, str]]:
    if not any(collect.values()):
        return list(collect)
    return {name: dict(options) for name, options in collect.items()}


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy(item) for item in value]
    return value


def dump_recipe(data: Mapping[str, Any]) -> str:
    """Returns a recipe's data as YAML text.

    Keys keep their order, and every string that another reader could take for something else is quoted.

    Args:
        data: Plain data, as ``resolved_recipe`` returns it.
    """
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=_WIDTH
    )
    return text


_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_SafeDumper):  # type: ignore[misc]
    """PyYAML's safe dumper without aliases, which readers of a snapshot should not have to follow."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: Any, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.match(text) and text.lower() not in _NOT_PLAIN and len(text) < 120
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')
    return node


_Dumper.add_representer(str, _represent_text)
