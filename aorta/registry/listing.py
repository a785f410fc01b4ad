"""The registry as rows, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aorta.registry.registry import Registry
from aorta.registry.workloads import registered_workloads
from aorta.text import columns


def mitigation_rows(registry: Registry) -> list[dict[str, Any]]:
    """Returns a row for each mitigation, in the order of the registry; the broken ones come last.

    Returns:
        ``name``, ``source``, ``env``, and ``problem`` (None, or why it cannot be used).
    """
    rows = [
        {"name": item.name, "source": item.source_package, "env": dict(item.env), "problem": None}
        for item in registry.mitigations.values()
    ]
    return rows + _broken(registry.broken_mitigations)


def environment_rows(registry: Registry) -> list[dict[str, Any]]:
    """Returns a row for each environment, in the order of the registry; the broken ones come last.

    Returns:
        ``name``, ``source``, the descriptor's fields, and ``problem`` (None, or why it cannot be used).
    """
    rows = []
    for item in registry.environments.values():
        fields = item.descriptor()
        name, source = fields.pop("name"), fields.pop("source_package")
        rows.append({"name": name, "source": source, **fields, "problem": None})
    return rows + _broken(registry.broken_environments)


def workload_rows() -> list[dict[str, Any]]:
    """Returns a row for each registered workload, by name.

    Returns:
        ``name``, ``source``, ``class``, ``launch_mode``, ``min_world_size``, ``isolation`` (what ``auto`` means, and
        whether it is required), and ``problem`` (None, or why the class cannot be imported).
    """
    rows = []
    for workload in registered_workloads():
        traits = workload.traits
        rows.append(
            {
                "name": workload.name,
                "source": workload.package,
                "launch_mode": traits.launch_mode,
                "min_world_size": traits.min_world_size,
                "isolation": traits.isolation_default + (" (required)" if traits.isolation_required else ""),
                "class": workload.reference,
                "problem": workload.problem,
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lays rows out for a terminal: name and source first, what is set last, a broken row's reason in its place."""
    if not rows:
        return ["none"]
    plain = [key for key in rows[0] if key in ("name", "source", "launch_mode", "min_world_size", "isolation")]
    lines = [[*plain, "content"]]
    for row in rows:
        if row["problem"] is not None:
            content = f"CANNOT BE USED: {row['problem']}"
        else:
            content = " ".join(_shown(key, value) for key, value in row.items() if key not in plain and value)
        lines.append([*(str(row.get(key, "-")) for key in plain), " ".join(content.split()) or "-"])
    return columns(lines)


def _shown(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_printable(text)}" for name, text in value.items())
    return _printable(value) if key == "class" else f"{key}: {_printable(value)}"


def _printable(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() else repr(text)


def _broken(problems: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "source": "?", "problem": problem} for name, problem in problems.items()]
