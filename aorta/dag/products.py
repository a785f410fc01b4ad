"""What a sweep makes beside its trials' records: whether it is all there, and what a person is told where it is not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from aorta._jsonio import NotRegularError, both_ends, require_regular, told
from aorta.plan.model import Plan
from aorta.plan.paths import RunLayout


def not_written(layout: RunLayout, plan: Plan) -> list[str]:
    """Says which of a run's files beside the trials' records are not there, and why as far as that can be seen.

    Args:
        layout: The run directory.
        plan: Its plan.

    Returns:
        A line for each file; empty when all are there.
    """
    pages = (layout.matrix_json, layout.matrix_md, layout.matrix_html, layout.perf_md)
    snapshots = (layout.host_env, *map(layout.environment, plan.environments))
    lines = []
    for path in (*pages, layout.recipe, *snapshots):
        try:
            require_regular(path)
        except NotRegularError as error:
            lines.append(f"could not be written: {told(error, path)}")
        except FileNotFoundError:
            lines.append(f"was not written: {path}; run the same command again to make it")
        except OSError as error:
            lines.append(f"could not be written: {told(error, path)}")
        else:
            if not both_ends(path, 1)[0]:
                lines.append(f"was not written: {path} is empty; run the same command again to make it")
    return lines


def closing_lines(matrix: Mapping[str, Any], errors: Sequence[OSError], layout: RunLayout, plan: Plan) -> list[str]:
    """Says what a sweep that ended early, or with a failed job, still lacks; a line each.

    Args:
        matrix: The matrix of what there is.
        errors: Why files of it could not be written.
        layout: The run directory.
        plan: Its plan.

    Returns:
        The lines; empty when trials and files are all there.
    """
    refused = [f"could not be written: {told(error, layout.run_dir)}" for error in errors]
    lines = list(dict.fromkeys([*refused, *not_written(layout, plan)]))
    if not matrix["complete"]:
        lines.append("the matrix is incomplete; run the same command again to run the missing trials")
    return lines


def occupied(layout: RunLayout) -> list[str]:
    """Says which folders lie in the place of a page of the matrix; a line each.

    Snakemake removes the other pages before it makes them anew, and would then fail on this one.
    """
    return [
        f"output: {path} is a folder, where a file belongs; move it away, and run the same command again"
        for path in (layout.matrix_json, layout.matrix_md, layout.matrix_html, layout.perf_md)
        if path.is_dir() and not os.path.islink(path) and any(path.iterdir())
    ]
