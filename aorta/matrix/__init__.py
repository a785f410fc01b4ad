"""From trial records to the matrix: rates, step times, the confound column, and the files that people read."""

from aorta.matrix.aggregate import Matrix, aggregate
from aorta.matrix.html import render_html
from aorta.matrix.markdown import render_markdown
from aorta.matrix.perf import render_perf
from aorta.matrix.write import build_matrix, make_reports, matrix_json, write_matrix

__all__ = [
    "Matrix",
    "aggregate",
    "build_matrix",
    "make_reports",
    "matrix_json",
    "render_html",
    "render_markdown",
    "render_perf",
    "write_matrix",
]
