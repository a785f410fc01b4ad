"""The line that tells a person how a trial ended, where the trial's own supervisor prints it on another host."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from aorta.plan.model import Plan
from aorta.plan.paths import RunLayout
from aorta.run.record import progress_line


def tell_trials(workflow: Any, layout: RunLayout, plan: Plan) -> list[str]:
    """Makes the process that sends jobs to a cluster print each trial's line once its record is here.

    Jobs that this host runs itself print theirs to the same terminal, and are left alone.

    Args:
        workflow: Snakemake's workflow, with its scheduler made.
        layout: The run directory's paths.
        plan: The plan that runs.

    Returns:
        Notices: empty when it worked, or when this host runs the jobs.
    """
    if workflow.local_exec:
        return []
    executor: Any = getattr(workflow.scheduler, "_executor", None)
    base = type(executor)
    if not hasattr(base, "handle_job_success"):
        return ["this Snakemake ends jobs otherwise than expected; how each trial has ended is not shown"]
    # Only here: a job that parses the Snakefile again is to start quickly.
    from aorta.matrix.records import Expected, RejectedError, read_record

    fingerprints = {cell.name: cell.fingerprint for cell in plan.cells}

    def tell(cell: str, trial: int) -> None:
        expected = Expected(cell=cell, trial=trial, workload=plan.workload, fingerprint=fingerprints[cell])
        # A record that does not count is the matrix's to tell; whoever listened may have gone, and the sweep goes on.
        with contextlib.suppress(RejectedError, OSError, ValueError):
            record = read_record(layout.trial(cell, trial), expected)
            print(progress_line(record, plan.trial_count, sys.stderr.isatty()), file=sys.stderr, flush=True)

    class TellingExecutor(base):  # type: ignore[misc, valid-type]
        """The executor, which tells how the trial of each job has ended; Snakemake has seen its file by then."""

        def handle_job_success(self, job: Any) -> None:
            super().handle_job_success(job)
            for part in job if job.is_group() else (job,):
                if part.rule.name == "trial":
                    tell(part.wildcards.cell, int(part.wildcards.trial))

    executor.__class__ = TellingExecutor
    return []
