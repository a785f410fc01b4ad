"""Rewrites the golden files: ``python tests/matrix/golden.py``, then read what ``git diff`` shows."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from matrix_builders import example_run

from aorta.matrix import write_matrix

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        layout = example_run(Path(folder))
        write_matrix(layout.run_dir)
        golden = Path(__file__).parent / "golden"
        golden.mkdir(exist_ok=True)
        for path in (layout.matrix_json, layout.matrix_md, layout.perf_md, layout.run_dir / "matrix.html"):
            shutil.copyfile(path, golden / path.name)
