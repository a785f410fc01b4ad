"""``aorta sweep``: run recipes, and see what they can name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from aorta.cli import options
from aorta.cli.lists import list_environments, list_mitigations, list_workloads

_RECIPE_FLAGS = (
    "workload",
    "mitigation_axis",
    "environment_axis",
    "trials",
    "steps",
    "ticket",
    "baseline_cell",
    "confound_threshold",
    "trial_isolation",
    "save_logs",
    "extra_env",
    "workload_config",
)
"""Parameters that stand for a recipe, and so contradict one."""


@click.group()
def sweep() -> None:
    """Run a recipe's matrix, and see what recipes can name.

    \b
    Examples:
      aorta sweep run --recipe recipes/training/example-training-ddp-smoke.yaml --dry-run
      aorta sweep list-mitigations
    """


@sweep.command()
@click.option("--recipe", metavar="FILE", help="The recipe to run.")
@click.option(
    "--mode",
    type=click.Choice(["matrix"]),
    help="With the flags below, and without --recipe: run what they say, one cell for each pair of the two axes.",
)
@click.option("--workload", metavar="NAME", help="The workload to run, instead of a recipe's.")
@click.option(
    "--mitigation-axis",
    default="none",
    show_default=True,
    metavar="NAMES",
    help="Mitigations, separated by commas: one cell for each, in each environment.",
)
@click.option(
    "--environment-axis",
    default="local",
    show_default=True,
    metavar="NAMES",
    help="Environments, separated by commas; image:REF names a Docker image in place.",
)
@click.option("--trials", type=int, metavar="N", help="Trials of each cell.")
@click.option("--steps", type=int, metavar="N", help="Steps of each trial.")
@click.option("--ticket", metavar="TEXT", help="The ticket that groups the output.")
@click.option("--baseline-cell", metavar="NAME", help="The baseline, such as none-local [default: as in a recipe].")
@click.option(
    "--confound-threshold",
    type=float,
    metavar="RATIO",
    help="Flag cells whose steps take longer than this many times the baseline's [default: 1.15].",
)
@options.trial_isolation
@click.option("--save-logs", is_flag=True, help="Keep each trial's standard output and error beside its result.")
@options.extra_env
@options.workload_config
@options.mitigations_file
@click.option(
    "--collect",
    metavar="NAMES",
    help="Collectors for every cell, separated by commas, instead of what the recipe and its cells say.",
)
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
@options.trial_timeout
@click.option(
    "--nproc-per-node",
    type=click.IntRange(min=1, max=1024),
    metavar="N",
    help="Ranks of each distributed trial, on this host or on each node [default: 1; under torchrun, its own].",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1, max=65536),
    metavar="N",
    help="Nodes that each distributed trial is spread over, on SLURM or inside an allocation [default: 1].",
)
@click.option(
    "--profile",
    metavar="NAME|DIR",
    help="Where jobs run: slurm, or the folder of a Snakemake profile [default: this host].",
)
@click.option("--rank-logs", is_flag=True, help="Keep the output of every rank beside its trial's record.")
@click.option("--verbose", "-v", is_flag=True, help="Show Snakemake's own log.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(context: click.Context, /, **given: Any) -> None:
    """Run every (cell, trial) of a recipe and print the matrix.

    An unfinished run of the same plan is continued. Exit code 0: the matrix is complete. 1: trials are missing,
    or with --strict a cell errored or never ran. 2: bad input, and nothing was run.

    Without --recipe, flags make the recipe: --workload, --trials and --steps, the two axes, and the options beside
    them. It is checked, run and resumed like one from a file.

    COMMAND, after --, is what a recipe of mode: probe runs under each of its cells' variables, where this command was
    started; its results lie in OUTPUT/TICKET/CELL/trial_N/.

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

    if given["recipe"] is not None:
        contradicting = options.given(context, _RECIPE_FLAGS)
        if contradicting:
            raise click.UsageError(
                f"{', '.join(contradicting)}: not with --recipe, which says what runs; change the recipe or drop it"
            )
    elif not options.given(context, ("mode", *_RECIPE_FLAGS)):
        raise click.UsageError("give --recipe FILE, or --mode matrix with --workload, --trials and --steps")
    config: dict[str, object] = {"output": given["output"]}
    optional = ("recipe", "run_dir", "devices", "trial_timeout", "nodes", "nproc_per_node")
    config.update({name: given[name] for name in optional if given[name] is not None})
    config.update({name: True for name in ("fresh", "refresh", "strict", "rank_logs") if given[name]})
    if given["collect"] is not None:
        # As a list, since Snakemake reads an empty string as nothing at all.
        config["collect"] = [name.strip() for name in given["collect"].split(",") if name.strip()]
    if given["command"]:
        config["command"] = list(given["command"])
    if given["mitigations_files"]:
        config["mitigations_file"] = list(given["mitigations_files"])
    flags = None if given["recipe"] is not None else MatrixFlags(**{name: given[name] for name in _RECIPE_FLAGS})
    if given["dry_run"]:
        text = dry_run_text(config, flags, given["profile"])
        # Empty where another rank tells.
        if text:
            click.echo(text)
        return
    how = {name: given[name] for name in ("jobs", "verbose", "profile")}
    raise SystemExit(run_sweep(config, working_directory=Path.cwd(), flags=flags, **how))


@sweep.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
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
@click.argument("run_dir", type=click.Path(path_type=Path), metavar="RUN_DIR")
def report(run_dir: Path) -> None:
    """Rebuild the reports of a run from what is on disk, at any moment.

    Writes matrix.json, matrix.md, matrix.html and perf.md and prints the matrix; a sweep that runs meanwhile is not
    disturbed. Exit code 0: the matrix is complete. 1: trials are missing. 2: RUN_DIR cannot be used.

    \b
    Example:
      aorta sweep report triage_results/EXAMPLE-001/training/2026-04-28T14-12-03
    """
    from aorta.dag.report import rebuild_reports

    raise SystemExit(rebuild_reports(run_dir))


@sweep.command()
@click.argument("run_dir", type=click.Path(path_type=Path), metavar="RUN_DIR")
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


sweep.add_command(list_mitigations, "list-mitigations")
sweep.add_command(list_environments, "list-environments")
sweep.add_command(list_workloads, "list-workloads")
