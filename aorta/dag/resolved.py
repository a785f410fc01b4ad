"""Writes ``recipe.resolved.yaml`` from a run directory's plan: ``python -m aorta.dag.resolved --run-dir D``."""

from __future__ import annotations

import argparse
from pathlib import Path

from aorta._jsonio import write_text_atomic
from aorta.dag.errors import bad_input_exits
from aorta.plan.paths import RunLayout
from aorta.plan.rundir import read_plan
from aorta.recipe import dump_recipe


def main(argv: list[str] | None = None) -> None:
    """Reads ``plan.json`` and writes the resolved recipe beside it."""
    parser = argparse.ArgumentParser(prog="python -m aorta.dag.resolved", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="the run directory")
    arguments = parser.parse_args(argv)
    with bad_input_exits():
        plan = read_plan(arguments.run_dir)
        write_text_atomic(RunLayout(arguments.run_dir, plan.workload).recipe, dump_recipe(dict(plan.recipe)))


if __name__ == "__main__":
    main()
