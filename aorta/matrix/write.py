"""Builds a run directory's matrix and writes its files."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from aorta._jsonio import write_text_atomic
from aorta.matrix.aggregate import Matrix, aggregate
from aorta.matrix.html import render_html
from aorta.matrix.load import LoadedRun, load_run
from aorta.matrix.markdown import render_markdown
from aorta.matrix.perf import render_perf
from aorta.plan import RunLayout, aside

_DEEPEST_INDENT = 6


def build_matrix(run_dir: Path | str) -> Matrix:
    """Reads a run directory and returns its matrix; writes nothing.

    Raises:
        PlanFileError: ``plan.json`` is missing or damaged. Every other damage becomes a warning in the matrix.
    """
    return _matrix(load_run(Path(run_dir)))


def write_matrix(run_dir: Path | str, *, set_aside: bool = False) -> Matrix:
    """Builds the matrix and writes ``matrix.json``, ``matrix.md``, ``matrix.html`` and ``perf.md``.

    Each file appears whole or not at all, and one that cannot be written does not keep the others from it. An
    incomplete ``matrix.json`` is dated before everything that it was made from: a trial that is recorded while the
    matrix is written, by this sweep or by an orphan of an earlier one, is then newer whatever the clocks do, and the
    next start makes the matrix again.

    Args:
        run_dir: The run directory.
        set_aside: Whether a trial file that is no valid record gets ``.invalid`` added to its name, so that its
            trial runs again.

    Raises:
        PlanFileError: ``plan.json`` is missing or damaged.
        OSError: A file cannot be written.
    """
    run = load_run(Path(run_dir))
    matrix, errors = _reports(run, Path(run_dir))
    if set_aside:
        for path in run.rejected:
            aside.set_aside(path)
    if errors:
        raise errors[0]
    return matrix


def make_reports(run_dir: Path | str) -> tuple[Matrix, list[OSError]]:
    """Builds the matrix and writes of its four files what can be written, as :func:`write_matrix` does.

    Returns:
        The matrix, and why files of it could not be written.

    Raises:
        PlanFileError: ``plan.json`` is missing or damaged.
    """
    return _reports(load_run(Path(run_dir)), Path(run_dir))


def _reports(run: LoadedRun, run_dir: Path) -> tuple[Matrix, list[OSError]]:
    matrix = _matrix(run)
    layout = RunLayout(run_dir, matrix["workload"])
    files = {
        layout.matrix_md: render_markdown(matrix),
        layout.matrix_html: render_html(matrix),
        layout.perf_md: render_perf(matrix),
        # Last, because its presence says that the matrix is there.
        layout.matrix_json: matrix_json(matrix),
    }
    errors = []
    for path, text in files.items():
        try:
            _write(path, text)
        except OSError as error:
            errors.append(error)
    if not matrix["complete"]:
        _backdate(layout, matrix)
    return matrix, errors


def _backdate(layout: RunLayout, matrix: Matrix) -> None:
    sources = [layout.plan, layout.recipe, layout.host_env, *map(layout.environment, matrix["environments"])]
    sources += [layout.run_dir / path for cell in matrix["cells"] for path in cell["trial_paths"]]
    dates = []
    for path in sources:
        with contextlib.suppress(OSError):
            dates.append(path.stat().st_mtime_ns)
    before = min(dates) - 1_000_000_000
    with contextlib.suppress(OSError):
        os.utime(layout.matrix_json, ns=(before, before))


def _matrix(run: LoadedRun) -> Matrix:
    return aggregate(run.plan, run.requests, run.records, snapshots=run.snapshots, warnings=run.warnings)


def _write(path: Path, text: str) -> None:
    # A trial's message may hold half of a surrogate pair, which has no UTF-8.
    write_text_atomic(path, text.encode("utf-8", "replace").decode("utf-8"))


def matrix_json(matrix: Matrix) -> str:
    """Returns the text of ``matrix.json``: indented, but a list of numbers or names on one line.

    A cell holds every step time of its trials. One number a line would make the file unreadable, and the standard
    library's indenting encoder ten times slower.

    Raises:
        ValueError: The matrix holds a NaN or an infinity.
    """
    return _dump(matrix, 0) + "\n"


def _dump(value: Any, level: int) -> str:
    nested = isinstance(value, dict | list) and value and level < _DEEPEST_INDENT
    if isinstance(value, list) and nested:
        nested = any(isinstance(item, dict | list) for item in value)
    if not nested:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    indent, outdent = " " * (level + 1), " " * level
    if isinstance(value, list):
        lines = [f"{indent}{_dump(item, level + 1)}" for item in value]
        return "[\n" + ",\n".join(lines) + f"\n{outdent}]"
    lines = [f"{indent}{json.dumps(key, ensure_ascii=False)}: {_dump(item, level + 1)}" for key, item in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{outdent}}}"
