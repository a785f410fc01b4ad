"""``aorta sweep submit`` and ``aorta sweep plan``: many short trials as a few shares, on SLURM or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aorta.cli import options


@click.command(cls=options.TakesCommand)
@options.what_to_run
@click.option(
    "--shards",
    type=options.WholeNumber(min=1, max=100_000),
    required=True,
    metavar="N",
    help="Split the trials into N shares, each run by one job on one node.",
)
@click.option("--partition", metavar="NAMES", help="Partition of the shares, or several with commas.")
@click.option("--account", metavar="NAME", help="Account that the shares are charged to.")
@click.option("--time", metavar="TIME", help="Time limit of a share, as sbatch takes it: minutes, or D-HH:MM:SS.")
@click.option("--gpus", metavar="[MODEL:]N", help="GPUs of each share, on its node.")
@click.option("--cpus", type=options.WholeNumber(min=1), metavar="N", help="Processors of each share.")
@click.option("--mem", metavar="SIZE", help="Memory of each share, as sbatch takes it: MB, or with K, M, G, T.")
@click.option("--constraint", metavar="FEATURES", help="Features that each share's node must have.")
@click.option("--sbatch-arg", multiple=True, metavar="ARG", help="Another option for sbatch; may be repeated.")
@click.option("--detach", is_flag=True, help="End as soon as the shares are submitted; the same command follows them.")
@options.devices
@options.trial_timeout
@options.nproc_per_node("Ranks of each distributed trial, all on the share's node")
@options.rank_logs
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def submit(context: click.Context, /, **given: Any) -> None:
    """Run a recipe on SLURM as an array of N jobs, each of which runs its share of the trials on its node.

    For trials of seconds, which a job each would cost more than they take. Prints what is submitted, follows it, and
    makes the matrix at the end. What the shares ask for is taken from the options, and where all cells agree from the
    recipe's resources. Exit code as of aorta sweep run; with --detach, 0 when the shares are submitted.

    The same command continues: it follows shares that are in the queue, and submits only those that lack trials.
    Ctrl-C cancels them; after any other end of this command they go on.

    COMMAND, always after --, is what a recipe of mode: probe runs.

    \b
    Examples:
      aorta sweep submit --recipe recipes/race/race_smoke.yaml --shards 3 --partition mi300 --gpus 8 --time 2:00:00
      aorta sweep submit --recipe r.yaml --shards 16 --cpus 4 --sbatch-arg=--exclusive --detach
    """
    from aorta.dag.allocation import Allocation
    from aorta.dag.submit import dry_submit_text, submit_sweep
    from aorta.recipe.flags import MatrixFlags

    options.check_what_to_run(context, given)
    flags = None if given["recipe"] is not None else MatrixFlags(**{name: given[name] for name in options.RECIPE_FLAGS})
    named = {name: given[name] for name in ("partition", "account", "time", "gpus", "cpus", "mem", "constraint")}
    what = {
        "config": options.settings(given),
        "count": given["shards"],
        "asked": Allocation(**named, sbatch_args=given["sbatch_arg"]),
        "working_directory": Path.cwd(),
        "flags": flags,
    }
    if given["dry_run"]:
        click.echo(dry_submit_text(**what))
        return
    raise SystemExit(submit_sweep(**what, detach=given["detach"]))


@click.command()
@options.what_to_run
@options.trial_timeout
@options.nproc_per_node("Ranks of each distributed trial, all on one host")
@options.rank_logs
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def plan(context: click.Context, /, **given: Any) -> None:
    """Make a run directory with the plan of a recipe, run nothing, and print the directory.

    Shares of it can then be started by any batch system: snakemake --config run_dir=DIR shard=1/3, and so on; aorta
    sweep report DIR makes the matrix. An unfinished run of the same plan is taken as it is.

    COMMAND, after --, is what a recipe of mode: probe runs.

    \b
    Example:
      aorta sweep plan --recipe recipes/race/race_smoke.yaml --nproc-per-node 8
    """
    from aorta.dag.runner import dry_run_text
    from aorta.dag.submit import plan_sweep
    from aorta.recipe.flags import MatrixFlags

    options.check_what_to_run(context, given)
    flags = None if given["recipe"] is not None else MatrixFlags(**{name: given[name] for name in options.RECIPE_FLAGS})
    config = options.settings(given)
    click.echo(dry_run_text(config, flags) if given["dry_run"] else plan_sweep(config, flags=flags))
