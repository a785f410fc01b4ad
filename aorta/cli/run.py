"""``aorta run``: trials of one workload, without a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aorta.cli import options


@click.command()
@click.option("--workload", required=True, metavar="NAME", help="The workload (aorta sweep list-workloads).")
@click.option("--trials", type=int, default=1, show_default=True, metavar="N", help="How many trials to run.")
@click.option("--steps", type=int, required=True, metavar="N", help="Steps of each trial.")
@click.option(
    "--environment",
    default="local",
    show_default=True,
    metavar="NAME",
    help="A registered environment; image:REF names a Docker image in place.",
)
@click.option(
    "--mitigations", default="none", show_default=True, metavar="NAMES", help="Mitigations to stack, with commas."
)
@options.extra_env
@options.workload_config
@options.mitigations_file
@options.collect
@options.trial_isolation
@click.option("--save-logs", is_flag=True, help="Keep each trial's standard output and error beside its result.")
@options.trial_timeout
@click.option(
    "--nproc-per-node",
    type=options.WholeNumber(min=1, max=1024),
    default=1,
    show_default=True,
    metavar="N",
    help="Ranks of each trial of a distributed workload, all on this host.",
)
@click.option(
    "--output", metavar="DIR", help="Folder for the results, which must hold none yet [default: run_results/<time>]."
)
def run(**given: Any) -> None:
    """Run trials of one workload; write a JSON file for each and say how they ended.

    Each trial is a fresh process under the supervisor that sweeps use; its result is
    DIR/<workload>/trial_d0_m0_t<N>.json. Exit code 0: every trial passed. 1: a trial failed, errored, or left no
    result. 2: bad input, and nothing was run.

    \b
    Example:
      aorta run --workload training --trials 2 --steps 10 --mitigations tf32_off,xnack \\
        --workload-config model.kind=mlp --extra-env NCCL_DEBUG=INFO
    """
    from aorta.run.command import run_from_flags

    raise SystemExit(run_from_flags(given, Path()))
