"""``aorta sweep``: run recipes, and see what they can name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from aorta.cli import options
from aorta.cli.lists import list_environments, list_mitigations, list_workloads
from aorta.cli.submit import plan, submit


@click.group()
def sweep() -> None:
    """Run a recipe's matrix, and see what recipes can name.

    \b
    Examples:
      aorta sweep run --recipe recipes/training/example-training-ddp-smoke.yaml --dry-run
      aorta sweep list-mitigations
    """


@sweep.command(cls=options.TakesCommand)
@options.what_to_run
@click.option(
    "--jobs", "-j", type=options.WholeNumber(min=1), metavar="N", help="At most N jobs at once [default: cores]."
)
@options.devices
@options.trial_timeout
@options.nproc_per_node("Ranks of each distributed trial, on this host or on each node", "1; under torchrun, its own")
@click.option(
    "--nodes",
    type=options.WholeNumber(min=1, max=65536),
    metavar="N",
    help="Nodes that each distributed trial is spread over, on SLURM or inside an allocation [default: 1].",
)
@click.option(
    "--profile",
    metavar="NAME|DIR",
    help="Where jobs run: slurm, or the folder of a Snakemake profile [default: this host].",
)
@options.rank_logs
@click.option("--verbose", "-v", is_flag=True, help="Show Snakemake's own log.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(context: click.Context, /, **given: Any) -> None:
    """Run every (cell, trial) of a recipe and print the matrix.

    An unfinished run of the same plan is continued. Exit code 0: the matrix is complete. 1: trials are missing,
    or another file of the run could not be made, or with --strict a cell errored or never ran. 2: bad input, and
    nothing was run.

    Without --recipe, flags make the recipe: --workload, --trials and --steps, the two axes, and the options beside
    them. It is checked, run and resumed like one from a file.

    COMMAND, always after --, is what a recipe of mode: probe runs under each of its cells' variables, where this
    command was started; its results lie in OUTPUT/TICKET/CELL/trial_N/.

    \b
    Examples:
      aorta sweep run --recipe recipes/training/example-training-mitigations.yaml --output results
      aorta sweep run --mode matrix --workload training --trials 2 --steps 100 --ticket EXAMPLE-151 \\
        --mitigation-axis none,tf32_off,xnack --environment-axis local,image:rocm/pytorch:nightly \\
        --workload-config model.num_layers=4
      aorta sweep run --recipe recipes/probe/probe-template-bash.yaml -- bash launch.sh --steps 100
      aorta sweep run --profile slurm --nodes 2 --nproc-per-node 8 --recipe recipes/race/race_smoke.yaml
    """
    from aorta.dag.runner import dry_run_text, run_sweep
    from aorta.recipe.flags import MatrixFlags

    options.check_what_to_run(context, given)
    config = options.settings(given)
    flags = None if given["recipe"] is not None else MatrixFlags(**{name: given[name] for name in options.RECIPE_FLAGS})
    if given["dry_run"]:
        text = dry_run_text(config, flags, given["profile"])
        # Empty where another rank tells.
        if text:
            click.echo(text)
        return
    how = {name: given[name] for name in ("jobs", "verbose", "profile")}
    raise SystemExit(run_sweep(config, working_directory=Path.cwd(), flags=flags, **how))


@sweep.command()
@click.argument("run_a", type=options.FilledPath(path_type=Path))
@click.argument("run_b", type=options.FilledPath(path_type=Path))
@options.as_json
def diff(run_a: Path, run_b: Path, as_json: bool) -> None:
    """Say what differs between two runs: variables, environments, settings, snapshots, and rates.

    It answers whether the registry, the driver or the recipe changed between the two. Exit code 0: nothing that
    was put in differs (the rates may). 1: something does. 2: one of them is no run directory.

    \b
    Example:
      aorta sweep diff triage_results/T/training/2026-04-28T14-12-03 triage_results/T/training/2026-05-02T09-30-00
    """
    from aorta.dag.errors import bad_input_exits
    from aorta.plan.diff import diff_runs, read_run, render

    with bad_input_exits():
        found = diff_runs(read_run(run_a), read_run(run_b))
    click.echo(json.dumps(found, indent=1, ensure_ascii=False) if as_json else "\n".join(render(found)))
    raise SystemExit(1 if found["inputs_differ"] else 0)


@sweep.command()
@click.argument("run_dir", type=options.FilledPath(path_type=Path), metavar="RUN_DIR")
def report(run_dir: Path) -> None:
    """Rebuild the reports of a run from what is on disk, at any moment.

    Writes matrix.json, matrix.md, matrix.html and perf.md and prints the matrix; a sweep that runs meanwhile is not
    disturbed. Where they cannot be written, as in a read-only copy, it says so and prints the matrix all the same.
    Exit code 0: the matrix is complete. 1: trials are missing. 2: RUN_DIR cannot be read.

    \b
    Example:
      aorta sweep report triage_results/EXAMPLE-001/training/2026-04-28T14-12-03
    """
    from aorta.dag.report import rebuild_reports

    raise SystemExit(rebuild_reports(run_dir))


@sweep.command()
@click.argument("run_dir", type=options.FilledPath(path_type=Path), metavar="RUN_DIR")
@options.as_json
def status(run_dir: Path, as_json: bool) -> None:
    """Show which trials of a run are done, running (where, since when), failed or missing, and the time left.

    Reads only, at any moment and from any host that sees RUN_DIR. Exit code 0, whatever the state; 2 if RUN_DIR
    cannot be used.

    \b
    Example:
      aorta sweep status triage_results/EXAMPLE-001/training/2026-04-28T14-12-03
    """
    from aorta.dag.errors import bad_input_exits
    from aorta.dag.status import status_lines, sweep_status

    with bad_input_exits():
        found = sweep_status(run_dir)
    click.echo(json.dumps(found, indent=1, ensure_ascii=False) if as_json else "\n".join(status_lines(found)))


sweep.add_command(plan)
sweep.add_command(submit)
sweep.add_command(list_mitigations, "list-mitigations")
sweep.add_command(list_environments, "list-environments")
sweep.add_command(list_workloads, "list-workloads")
