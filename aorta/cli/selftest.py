"""``aorta selftest``: does the detector find what is planted?"""

from __future__ import annotations

from pathlib import Path

import click

from aorta.cli.options import WholeNumber


@click.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for the runs and logs; what has run there is not run again [default: a temporary one].",
)
@click.option("--quick", is_flag=True, help="Only three cells of race: less than a minute.")
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Judge this recipe, with faults in workload_config.inject, instead of the shipped ones; may be repeated.",
)
@click.option(
    "--nproc-per-node",
    type=WholeNumber(min=1, max=1024),
    default=2,
    show_default=True,
    metavar="N",
    help="Ranks of each trial of a distributed workload; the shipped recipes plant faults on ranks 0 and 1.",
)
@click.option("--verbose", "-v", is_flag=True, help="Show what the sweeps print.")
def selftest(output: Path | None, quick: bool, recipes: tuple[Path, ...], nproc_per_node: int, verbose: bool) -> None:
    """Plant known faults, and see that each is found where it was planted, and nothing else.

    Runs the recipes of recipes/selftest, compares every trial's record with what was planted in it, and prints a table
    and the reason of each miss. Exit code 0: every fault was found in its cell, on its rank and in its buffer, and no
    clean trial failed. 1: something was missed, described wrongly, or found without a cause. 2: a recipe could not run.

    \b
    Examples:
      aorta selftest --quick
      aorta selftest --output selftest_results
    """
    from aorta.selftest.run import run_selftest, shipped_recipes

    if quick and recipes:
        raise click.UsageError("--quick: not with --recipe, which says what runs; drop one of them")
    chosen = list(recipes) or shipped_recipes(quick=quick)
    raise SystemExit(run_selftest(chosen, output=output, nproc_per_node=nproc_per_node, verbose=verbose))
