"""What a recipe should be warned about before anything runs: settings that nobody reads, places that nobody enters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aorta.plan.overlay import overlay_values
from aorta.recipe.model import Recipe
from aorta.workloads.base import ConfigProblem, TrialShape

HONOURED_FIELDS = ("docker", "venv", "buck_target", "emulator")
"""Fields of an environment that only a workload can act on."""

STRICT_CODES = frozenset({"unknown_config_key", "bad_config_value", "ran_on_host"})
"""Findings that ``strict`` turns into errors."""


_THREADS, _TORCHRUN = "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"


class WorkloadTraits(Protocol):
    """What the compiler needs to know of a workload's class."""

    @property
    def launch_mode(self) -> str: ...
    @property
    def min_world_size(self) -> int: ...
    @property
    def isolation_default(self) -> str: ...
    @property
    def acts_on(self) -> frozenset[str]: ...


@dataclass(frozen=True, kw_only=True)
class RegisteredWorkload:
    """A workload as the registry found it.

    Attributes:
        traits: The class's attributes.
        reference: ``module:Class``, or None when the name is not registered here.
        check_config: The class's own look at a merged ``workload_config``.
        problem: Why the workload cannot be used here (not registered, or its import failed), or None.
        remarks: What is wrong with the class itself, where something else was used instead.
        process_env: Variables that the class wants its processes to start with, for a merged ``workload_config``.
        check_trial: The class's own look at a merged ``workload_config`` in a trial with so many steps and ranks.
    """

    traits: WorkloadTraits
    reference: str | None
    check_config: Callable[[Mapping[str, Any]], list[ConfigProblem]]
    problem: str | None = None
    remarks: tuple[str, ...] = ()
    process_env: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda config: {}
    check_trial: Callable[[Mapping[str, Any], TrialShape], list[ConfigProblem]] = lambda config, shape: []


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to warn about.

    Attributes:
        cell: Name of the cell, or None when it concerns all of them.
        code: What kind of thing, for programs.
        place: Where in the recipe, such as ``cells[2].workload_config.lr``; empty when it is not in the recipe.
        message: What it is.
        key: The part of ``place`` that a reader of the message needs to see, or empty.
    """

    cell: str | None
    code: str
    place: str
    message: str
    key: str = ""

    def warning(self) -> dict[str, Any]:
        """Returns the finding as ``plan.json`` and ``matrix.json`` hold it."""
        message = f"{self.key}: {self.message}" if self.key else self.message
        return {"cell": self.cell, "code": self.code, "message": message}


def process_variables(workload: RegisteredWorkload, config: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    """Returns the variables that a workload wants its processes to start with, or none and what is wrong with them."""
    try:
        variables = dict(workload.process_env(config))
    # A plugin's own method may do anything; its recipe can still run.
    except Exception as error:
        return {}, f"its process_env() raised {type(error).__name__}: {error}"
    if not all(isinstance(part, str) for pair in variables.items() for part in pair):
        return {}, "its process_env() gave names or values that are no strings"
    return variables, None


def recipe_findings(
    recipe: Recipe, requests: Sequence[Mapping[str, Any]], workload: RegisteredWorkload
) -> list[Finding]:
    """Looks for what the workload would ignore or refuse.

    Args:
        recipe: A loaded recipe.
        requests: Its cells' requests, in the recipe's order.
        workload: The workload, as the registry found it.
    """
    found = []
    if workload.problem is not None:
        message = f"{workload.problem}; every trial would end as workload_setup_failed"
        found.append(Finding(cell=None, code="workload_unavailable", place="workload", message=message))
    found += [
        Finding(cell=None, code="workload_class", place="workload", message=f"workload {recipe.workload!r}: {remark}")
        for remark in workload.remarks
    ]
    for problem in dict.fromkeys(process_variables(workload, request["workload_config"])[1] for request in requests):
        if problem is not None:
            message = f"workload {recipe.workload!r}: {problem}; its processes start without them"
            found.append(Finding(cell=None, code="process_env_unread", place="workload", message=message))
    return [*found, *_config_findings(recipe, requests, workload), *_host_findings(recipe, workload)]


def _config_findings(
    recipe: Recipe, requests: Sequence[Mapping[str, Any]], workload: RegisteredWorkload
) -> list[Finding]:
    """Checks each cell's settings; what comes from the recipe's own block is reported there, once."""
    cells_of: dict[tuple[str, str, str], list[int]] = {}
    for index, request in enumerate(requests):
        try:
            problems = [
                (problem.code, problem.key, problem.message)
                for problem in [
                    *workload.check_config(request["workload_config"]),
                    *workload.check_trial(request["workload_config"], _shape(request)),
                ]
            ]
        # A plugin's own check may do anything; its recipe can still run.
        except Exception as error:
            message = f"workload {recipe.workload!r} could not check workload_config: {type(error).__name__}: {error}"
            return [Finding(cell=None, code="config_unchecked", place="workload", message=message)]
        for problem in problems:
            cells_of.setdefault(problem, []).append(index)
    found = []
    for (code, key, message), indices in cells_of.items():
        shown = f"workload_config.{key}"
        top = _top_key(key, requests[indices[0]]["workload_config"])
        inheriting = [
            index
            for index, cell in enumerate(recipe.cells)
            if top in recipe.workload_config and top not in cell.workload_config
        ]
        if indices == inheriting:
            found.append(Finding(cell=None, code=code, place=shown, message=message, key=shown))
            continue
        found += [
            Finding(
                cell=recipe.cells[index].name, code=code, place=f"cells[{index}].{shown}", message=message, key=shown
            )
            for index in indices
        ]
    return found


def _shape(request: Mapping[str, Any]) -> TrialShape:
    """Returns what is known of a cell's trials."""
    launch = request["launch"]
    ranks = launch["nnodes"] * launch["nproc_per_node"]
    if ranks < launch["min_world_size"]:
        # The run is refused as it stands, so that another number is still to come.
        return TrialShape(steps=request["steps"])
    return TrialShape(steps=request["steps"], world_size=ranks, local_world_size=launch["nproc_per_node"])


def _top_key(key: str, config: Mapping[str, Any]) -> str:
    """Returns the top-level key that a dotted key lies below; a key may itself hold a dot."""
    return max((name for name in config if key == name or key.startswith(f"{name}.")), key=len, default=key)


def _host_findings(recipe: Recipe, workload: RegisteredWorkload) -> list[Finding]:
    """Says which named places a trial will not run in; without this a host run would pass for a container run."""
    if workload.reference is None:
        return []
    found = []
    for index, cell in enumerate(recipe.cells):
        ignored = [
            f"{field} {getattr(cell.environment, field)!r}"
            for field in HONOURED_FIELDS
            if getattr(cell.environment, field) is not None and field not in workload.traits.acts_on
        ]
        if ignored:
            message = (
                f"environment {cell.environment.name!r} names {' and '.join(ignored)}, but workload "
                f"{recipe.workload!r} does not act on that: the trials run on the host"
            )
            place = f"cells[{index}].environment"
            found.append(Finding(cell=cell.name, code="ran_on_host", place=place, message=message))
    return found


def surroundings_findings(requests: Sequence[Mapping[str, Any]], ambient: Mapping[str, str]) -> list[Finding]:
    """Names variables that some cells control while others would inherit a value from the launching environment."""
    overlays = {request["cell"]: overlay_values(request["env"]) for request in requests}
    found = []
    for name in sorted({name for overlay in overlays.values() for name in overlay}):
        heirs = [cell for cell, overlay in overlays.items() if name not in overlay]
        if name in ambient and heirs:
            # torchrun gives its processes one thread each unless the user's shell says otherwise.
            theirs = name == _THREADS and _TORCHRUN in ambient
            message = (
                f"{name} is set to {ambient[name]!r} where the sweep was started"
                f"{' (torchrun sets it where nobody else does)' if theirs else ''}, so cells that do not set it "
                f"inherit that value: {', '.join(heirs)}; {'' if theirs else 'unset it, or '}set it in the recipe"
            )
            found.append(Finding(cell=None, code="ambient_variable", place="", message=message))
    return found


def launch_findings(name: str, workload: RegisteredWorkload, nodes: int, nproc_per_node: int) -> list[Finding]:
    """Says when a number of nodes or ranks is given to a workload that has one process."""
    if workload.traits.launch_mode == "distributed":
        return []
    return [
        Finding(
            cell=None,
            code=f"{setting}_ignored",
            place="",
            message=(
                f"{setting} is {number}, but workload {name!r} is single_process: each of its trials runs one process"
            ),
        )
        for setting, number in (("nodes", nodes), ("nproc_per_node", nproc_per_node))
        if number != 1
    ]
