"""What the engine may know of a workload before it runs: its class's metadata, through the entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from aorta.registry.errors import RegistryError
from aorta.registry.names import short

_GROUP = "aorta.workloads"


@dataclass(frozen=True, kw_only=True)
class WorkloadTraits:
    """How a workload wants to be run.

    The defaults are those of ``aorta.workloads.base.Workload``; they also stand for a workload that is not
    registered here, so that a recipe for another machine can be checked as far as possible.

    Attributes:
        registered: Whether the values come from the workload's class.
        launch_mode: ``single_process`` or ``distributed``.
        min_world_size: Smallest number of ranks.
        isolation_supported: Values of ``trial_isolation`` that the workload can run under.
        isolation_default: What ``trial_isolation: auto`` means.
        isolation_required: Whether only ``process`` will do.
        acts_on: Fields of an environment that the workload itself honours.
        remarks: Attributes of the class that cannot be used, and what stands in for them.
    """

    registered: bool = False
    launch_mode: str = "single_process"
    min_world_size: int = 1
    isolation_supported: frozenset[str] = frozenset({"process", "in_process"})
    isolation_default: str = "process"
    isolation_required: bool = False
    acts_on: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()


# Fixed by the recipe format itself, so that a recipe is judged alike where these workloads are not installed.
_KNOWN_UNREGISTERED = {
    "race": WorkloadTraits(
        launch_mode="distributed", min_world_size=2, isolation_supported=frozenset({"process"}), isolation_required=True
    ),
    "llm_determinism": WorkloadTraits(launch_mode="distributed"),
}


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=_GROUP)}


def workload_names() -> tuple[str, ...]:
    """Returns the names of the registered workloads, sorted."""
    return tuple(sorted(_points()))


def workload_reference(name: str) -> str | None:
    """Returns a workload's class as ``module:Class`` without importing it, or None if it is not registered."""
    point = _points().get(name)
    return point.value if point is not None else None


@dataclass(frozen=True, kw_only=True)
class RegisteredName:
    """A workload as a list shows it.

    Attributes:
        name: Its name.
        reference: Its class as ``module:Class``.
        package: The distribution that registers it.
        traits: How it wants to be run.
        problem: Why its class cannot be used, or None.
    """

    name: str
    reference: str
    package: str
    traits: WorkloadTraits
    problem: str | None


def registered_workloads() -> list[RegisteredName]:
    """Returns the registered workloads by name; imports their modules."""
    found = []
    for name, point in sorted(_points().items()):
        problem = None
        try:
            workload_class(name)
        except RegistryError as error:
            problem = str(error)
        package = point.dist.name if point.dist is not None else point.module
        found.append(
            RegisteredName(name=name, reference=point.value, package=package, traits=traits(name), problem=problem)
        )
    return found


def workload_class(name: str) -> type | None:
    """Returns the class of a registered workload, or None if there is none of that name.

    Raises:
        RegistryError: The workload is registered, but its class cannot be imported.
    """
    point = _points().get(name)
    if point is None:
        return None
    try:
        loaded = point.load()
    # A plugin's module may raise anything, SystemExit included.
    except (Exception, SystemExit) as error:
        message = f"the workload {short(name)} ({point.value}) cannot be imported: {type(error).__name__}: {error}"
        raise RegistryError(message) from error
    if not isinstance(loaded, type):
        raise RegistryError(f"the workload {short(name)} ({point.value}) is not a class but {short(loaded)}")
    return loaded


def traits(name: str) -> WorkloadTraits:
    """Returns how a workload wants to be run; imports its module if it is registered.

    Args:
        name: Name in the ``aorta.workloads`` entry-point group.

    Returns:
        The attributes of the class. For a name that is not registered, or whose class cannot be imported, what the
        recipe format fixes for it, else the defaults: such a workload fails when its cell runs, not before.
    """
    fallback = _KNOWN_UNREGISTERED.get(name, WorkloadTraits())
    try:
        cls = workload_class(name)
    except RegistryError:
        return fallback
    if cls is None:
        return fallback
    return _read_traits(cls)


_ISOLATIONS = frozenset({"process", "in_process"})
_PLACES = frozenset({"docker", "venv", "buck_target", "emulator"})

# What a class may say, and how a person is told.
_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "launch_mode": ("'single_process' or 'distributed'", lambda value: value in ("single_process", "distributed")),
    "min_world_size": (
        "a whole number of at least 1",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
    ),
    "isolation_supported": (
        "a set of 'process' and 'in_process'",
        lambda value: isinstance(value, set | frozenset | tuple | list) and set(value) <= _ISOLATIONS and bool(value),
    ),
    "isolation_default": ("'process' or 'in_process'", lambda value: value in _ISOLATIONS),
    "isolation_required": ("true or false", lambda value: isinstance(value, bool)),
    "acts_on": (
        "a set of environment fields",
        lambda value: isinstance(value, set | frozenset | tuple | list) and set(value) <= _PLACES,
    ),
}


def _read_traits(cls: type) -> WorkloadTraits:
    """Reads a class's attributes; one that cannot be used is remarked on and replaced by the default."""
    defaults = WorkloadTraits()
    values: dict[str, Any] = {}
    remarks = []
    for name, (expected, is_right) in _RULES.items():
        value = getattr(cls, name, getattr(defaults, name))
        try:
            right = is_right(value)
        # A plugin may put anything there, unhashable things included.
        except Exception:
            right = False
        if not right:
            remarks.append(f"{name} is {short(value)}, not {expected}; {getattr(defaults, name)!r} is used")
            value = getattr(defaults, name)
        values[name] = frozenset(value) if isinstance(value, set | frozenset | tuple | list) else value
    return WorkloadTraits(registered=True, remarks=tuple(remarks), **values)
