"""Corrections to Snakemake's scheduler, applied before a run starts.

They touch internals of Snakemake, so each is guarded: where a later version lacks the attribute, the run goes on
without the correction and says so. Tests hold them against the pinned version.
"""

from __future__ import annotations

import _thread
import heapq
import sys
from typing import Any


def disarm_timers(workflow: Any) -> list[str]:
    """Stops the job rate limiter from starting a timer thread each scheduling round.

    The limiter is on by default and cannot be turned off from the command line. Its timers release a semaphore that
    starts another round, which starts another timer: after some hundred jobs the main process has more than a
    hundred threads and takes a third of a core, beside the trials whose speed is being measured.

    Returns:
        Notices: empty when it worked.
    """
    scheduler: Any = getattr(workflow, "scheduler", None)
    if not hasattr(scheduler, "job_rate_limiter"):
        return ["this Snakemake has no job_rate_limiter to turn off; the main process may use more CPU than it should"]
    scheduler.job_rate_limiter = None
    return []


def end_on_sigterm(scheduler: type | None = None) -> list[str]:
    """Makes a SIGTERM end Snakemake whatever its main thread is doing at that moment.

    Snakemake's own handler takes the scheduler's lock. A handler runs in the main thread, between two of its steps: if
    that thread holds the lock, it waits for itself for ever, and the run directory stays locked with it.

    To be called before the scheduler is made, which installs its handler then, and in jobs as well.

    Args:
        scheduler: The class of Snakemake's scheduler; for tests.

    Returns:
        Notices: empty when it worked.
    """
    if scheduler is None:
        from snakemake.scheduling import job_scheduler

        scheduler = getattr(job_scheduler, "JobScheduler", None)
    end = getattr(scheduler, "exit_gracefully", None)
    if end is None:
        return ["this Snakemake ends otherwise than expected; a SIGTERM may not end it"]

    def exit_gracefully(self: Any, *_signal: Any) -> None:
        # A bare thread: the threading module's own start takes locks as well.
        _thread.start_new_thread(end, (self,))

    scheduler.exit_gracefully = exit_gracefully  # type: ignore[union-attr]
    return []


def keep_order(workflow: Any, window: int) -> list[str]:
    """Offers the scheduler the ready jobs in the order of their priorities, a window at a time.

    Snakemake's own subsampling bounds the cost of a round by drawing ready jobs at random, which would lose the
    planned order of trials. The window holds the jobs of highest priority instead.

    Args:
        workflow: Snakemake's workflow, with its scheduler made.
        window: How many ready jobs a round looks at; must exceed the number of jobs that can run at once.

    Returns:
        Notices: empty when it worked.
    """
    scheduler: Any = getattr(workflow, "scheduler", None)
    base = type(scheduler)
    dag = getattr(workflow, "dag", None)
    if not isinstance(getattr(base, "open_jobs", None), property) or not hasattr(dag, "ready_jobs"):
        return ["this Snakemake schedules otherwise than expected; trials may not run in the planned order"]

    class OrderedScheduler(base):  # type: ignore[misc, valid-type]
        """The scheduler, offering the ready jobs of highest priority first."""

        @property
        def open_jobs(self) -> list[Any]:
            ready = self.workflow.dag.ready_jobs
            return heapq.nlargest(window, ready, key=lambda job: job.priority)

    scheduler.__class__ = OrderedScheduler
    return []


def limit_devices(workflow: Any, devices: int) -> None:
    """Sets the resource ``device`` unless the user gave one with ``--resources``."""
    resources = workflow.global_resources
    if "device" not in resources:
        workflow.register_resource("device", devices)
        workflow.aorta_limited_devices = True


def free_devices(workflow: Any) -> None:
    """Takes the limit of :func:`limit_devices` back: this host's devices do not limit jobs that run elsewhere."""
    if getattr(workflow, "aorta_limited_devices", False):
        workflow.register_resource("device", sys.maxsize)


def hand_on(workflow: Any, name: str, value: str) -> None:
    """Adds a setting to those that jobs get which parse the Snakefile again; this process does not see it.

    Args:
        workflow: Snakemake's workflow.
        name: The setting.
        value: Text that no shell touches and that reads as no number, truth value or YAML.
    """
    settings = workflow.config_settings
    settings.config_args = [*(settings.config_args or []), f"{name}={value}"]


def keep_no_metadata(workflow: Any) -> list[str]:
    """Makes Snakemake note nothing about how a file was made, as ``--drop-metadata`` does.

    Returns:
        Notices: empty when it worked.
    """
    settings: Any = getattr(workflow, "execution_settings", None)
    if not hasattr(settings, "keep_metadata"):
        return ["this Snakemake keeps its notes otherwise than expected; a later sweep may start recorded trials again"]
    settings.keep_metadata = False
    return []
