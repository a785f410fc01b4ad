"""``aorta sweep``: run recipes."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def sweep() -> None:
    """Run a recipe's matrix.

    \b
    Example:
      aorta sweep run --recipe recipes/training/example-training-ddp-smoke.yaml --dry-run
    """


@sweep.command()
@click.option("--recipe", required=True, metavar="FILE", help="The recipe to run.")
@click.option("--dry-run", is_flag=True, help="Check the recipe, show what would run, and write nothing.")
@click.option(
    "--output", default="triage_results", show_default=True, metavar="DIR", help="Folder that holds all runs."
)
@click.option("--run-dir", metavar="DIR", help="Make this run directory, or continue it with the recipe as it is now.")
@click.option("--fresh", is_flag=True, help="Start a new run even when an unfinished one of the same plan exists.")
@click.option("--refresh", is_flag=True, help="Take the registry's present values where a continued run froze others.")
@click.option("--strict", is_flag=True, help="Warnings are errors; end with 1 if a cell errored or never ran.")
@click.option("--jobs", "-j", type=click.IntRange(min=1), metavar="N", help="At most N jobs at once [default: cores].")
@click.option(
    "--devices",
    type=click.IntRange(min=1, max=4096),
    metavar="N",
    help="At most N trials at once on this host [default: one per accelerator, one without any].",
)
@click.option(
    "--trial-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Time limit of one trial, 0 for none [default: 86400].",
)
@click.option("--verbose", "-v", is_flag=True, help="Show Snakemake's own log.")
def run(
    recipe: str,
    dry_run: bool,
    output: str,
    run_dir: str | None,
    fresh: bool,
    refresh: bool,
    strict: bool,
    jobs: int | None,
    devices: int | None,
    trial_timeout: float | None,
    verbose: bool,
) -> None:
    """Run every (cell, trial) of a recipe and print the matrix.

    An unfinished run of the same plan is continued. Exit code 0: the matrix is complete. 1: trials are missing,
    or with --strict a cell errored or never ran. 2: bad input, and nothing was run.

    \b
    Example:
      aorta sweep run --recipe recipes/training/example-training-mitigations.yaml --output results
    """
    from aorta.dag.runner import dry_run_text, run_sweep

    config: dict[str, object] = {"recipe": recipe, "output": output}
    optional = {"run_dir": run_dir, "devices": devices, "trial_timeout": trial_timeout}
    config.update({name: value for name, value in optional.items() if value is not None})
    flags = {"fresh": fresh, "refresh": refresh, "strict": strict}
    config.update({name: True for name, value in flags.items() if value})
    if dry_run:
        click.echo(dry_run_text(config))
        return
    raise SystemExit(run_sweep(config, jobs=jobs, verbose=verbose, working_directory=Path.cwd()))
