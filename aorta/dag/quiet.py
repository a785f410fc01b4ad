"""Keeps errors visible when Snakemake is told to be quiet."""

from __future__ import annotations

import logging
from typing import Any


def show_errors(workflow: Any) -> None:
    """Shows Snakemake's errors although ``--quiet all`` hides them with everything else.

    ``aorta sweep run`` silences Snakemake, whose running commentary would bury the trials' own lines. Why a job or
    a whole run failed must be seen all the same.
    """
    from snakemake.logging import DefaultFormatter, logger
    from snakemake.settings.enums import Quietness

    settings = getattr(workflow, "output_settings", None)
    if Quietness.ALL not in (getattr(settings, "quiet", None) or ()):
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    handler.setFormatter(DefaultFormatter(set(), getattr(settings, "show_failed_logs", False)))
    logger.addHandler(handler)
