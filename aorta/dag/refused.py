"""Which of a sweep's jobs SLURM would not take, found out before any of them is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from aorta.dag.sbatch import Examiner
from aorta.plan.model import Plan
from aorta.text import shortened

_SILENT = ("does not answer", "Unable to contact", "Socket timed out", "Zero Bytes were transmitted")
"""Parts of what sbatch says when the controller is not there: jobs then wait for it."""

_PLAIN = ("sbatch", "--wrap=true")
_NOT_ASKED = ("tmpdir", "mem", "mem_mib", "disk", "disk_mb", "disk_mib", "tasks_per_gpu", "device")
"""Resources of a job that say nothing to SLURM, or say it twice."""

_WIDEST = 300
_TOLD = 6


def refused_jobs(workflow: Any, plan: Plan, *, pause: Callable[[float], None] = time.sleep) -> list[str]:
    """Asks SLURM about one job of each kind that is to be sent.

    Where it says the same against a job that asks for nothing, nothing is concluded: some sites refuse such questions.

    Args:
        workflow: Snakemake's workflow, whose jobs the SLURM executor sends.
        plan: The plan.
        pause: Waits for the given seconds; for tests.

    Returns:
        A line for each cell, or snapshot, whose jobs it would not take.
    """
    if not hasattr(workflow.scheduler._executor, "get_partition_arg"):
        return []
    numbers = {cell.name: number for number, cell in enumerate(plan.cells)}
    examiner = Examiner(_PLAIN, pause=pause)
    answers: dict[str, str | None] = {}
    places: dict[str, list[str]] = {}
    for job in _one_of_each(workflow, numbers):
        said = _refusal(workflow, job, examiner, answers)
        if said is None:
            continue
        name = job.wildcards_dict.get("cell")
        if name is not None:
            own = plan.cells[numbers[name]].resources
            # What the recipe does not ask for is the profile's.
            place = f"cells[{numbers[name]}].resources" if own else "the profile's default-resources"
            places.setdefault(said, []).append(f"{place} ({name}:{_told(own or _asked(job))})")
        elif said not in places:
            places[said] = [f"{job.message or job.rule.name} ({_told(_asked(job)).strip()})"]
    return [f"{_listed(named)}: SLURM would not take such a job: {said}" for said, named in places.items()]


def _asked(job: Any) -> dict[str, Any]:
    """Returns what a job asks SLURM for, in Snakemake's names."""
    # Of sizes Snakemake keeps several forms; mem_mb is what the plugin asks for, unless it is not determined yet.
    resources = {name: value for name, value in job.resources.items() if name not in _NOT_ASKED}
    nothing = (None, "", "<TBD>")
    return {name: value for name, value in resources.items() if value not in nothing and not name.startswith("_")}


def _told(asked: Mapping[str, Any]) -> str:
    return "".join(f" {name}={value}" for name, value in asked.items())


def _listed(places: list[str]) -> str:
    more = f" and {len(places) - _TOLD} more" if len(places) > _TOLD else ""
    return f"{', '.join(places[:_TOLD])}{more}"


def _one_of_each(workflow: Any, numbers: Mapping[str, int]) -> list[Any]:
    """Returns one job of those that differ by nothing but the trial's number, in the order of the cells."""
    found: dict[tuple[str, ...], Any] = {}
    for job in workflow.dag.needrun_jobs():
        if not job.is_local:
            kind = [value for name, value in job.wildcards_dict.items() if name != "trial"]
            found.setdefault((job.rule.name, *kind), job)
    return sorted(found.values(), key=lambda job: numbers.get(job.wildcards_dict.get("cell", ""), len(numbers)))


def _refusal(workflow: Any, job: Any, examiner: Examiner, answers: dict[str, str | None]) -> str | None:
    """Returns what SLURM says against a job, or None; of jobs that ask for the same, one is asked about."""
    kind = repr(sorted(job.resources.items(), key=repr))
    if kind not in answers:
        answers[kind] = _answer(workflow, job, examiner)
    return answers[kind]


def _answer(workflow: Any, job: Any, examiner: Examiner) -> str | None:
    from snakemake_interface_common.exceptions import WorkflowError

    try:
        options = _options(workflow, job)
    except WorkflowError as error:
        # The plugin's own checks, of an account or of what a request may hold.
        return shortened(" ".join(str(error).split()), _WIDEST)
    whole, plain = examiner.refusals(["sh", "-c", f'{options} --wrap=true "$@"', "sh"])
    is_unknown = whole is None or whole == plain or any(text in whole for text in _SILENT)
    return None if is_unknown else whole


def _options(workflow: Any, job: Any) -> str:
    """Returns the plugin's own command line for a job, up to what the job runs.

    Raises:
        WorkflowError: The plugin would not send such a job.
    """
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string
    from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

    executor = workflow.scheduler._executor
    validate_slurm_extra(job)
    given = {
        "run_uuid": "aorta",
        "slurm_logfile": "/dev/null",
        "comment_str": "",
        "account": next(executor.get_account_arg(job)),
        "partition": executor.get_partition_arg(job),
        "workdir": workflow.workdir_init,
    }
    return str(get_submit_command(job, given, settings=workflow.executor_settings)) + str(set_gres_string(job))
