"""Keeps errors visible when Snakemake is told to be quiet, and short where all that matters can be said in a line."""

from __future__ import annotations

import logging
from typing import Any

from aorta.dag.cluster import FAILURE

_CLOSING = (
    "Exiting because a job execution failed. Look above for error messages",
    "WorkflowError:\nAt least one job did not complete successfully.",
)
"""What Snakemake says at the end of each run with a failed job; aorta names the missing trials then."""


def show_errors(workflow: Any) -> None:
    """Shows Snakemake's errors although ``--quiet all`` hides them with everything else.

    ``aorta sweep run`` silences Snakemake, whose running commentary would bury the trials' own lines. Why a job or
    a whole run failed must be seen all the same: in a line for what SLURM does to a job, as Snakemake tells it for
    everything else. Snakemake's log file gets the whole commentary.
    """
    from snakemake.logging import DefaultFormatter, logger
    from snakemake.settings.enums import Quietness

    settings = getattr(workflow, "output_settings", None)
    if Quietness.ALL not in (getattr(settings, "quiet", None) or ()):
        return
    log_files = [handler for handler in logger.handlers if isinstance(handler, logging.FileHandler)]
    for found in (found for file in log_files for found in file.filters if hasattr(found, "quiet")):
        found.quiet = set()
    handler = _Errors([file.baseFilename for file in log_files])
    handler.setFormatter(DefaultFormatter(set(), getattr(settings, "show_failed_logs", False)))
    logger.addHandler(handler)


class _Errors(logging.StreamHandler[Any]):
    """Shows errors, each failure that can be told in a line once: what SLURM refuses is tried and refused again.

    Args:
        log_files: Files that hold all there is to know, named with the first such line.
    """

    def __init__(self, log_files: list[str]) -> None:
        super().__init__()
        self.setLevel(logging.ERROR)
        self._log_files = log_files
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        line = _line(record)
        if line is None:
            return not (self._told and record.getMessage() in _CLOSING)
        return line not in self._told

    def format(self, record: logging.LogRecord) -> str:
        line = _line(record)
        if line is None:
            return super().format(record)
        where = [] if self._told else [f"aorta: more in Snakemake's log: {file}" for file in self._log_files]
        self._told.add(line)
        return "\n".join([f"aorta: {line}", *where])


def _line(record: logging.LogRecord) -> str | None:
    aux = getattr(record, "aux", None)
    return aux.get(FAILURE) if isinstance(aux, dict) else None
