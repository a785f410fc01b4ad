"""Options that several commands share, each written once."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

Command = Callable[..., Any]


class TakesCommand(click.Command):
    """A command whose argument COMMAND must follow ``--``.

    Without it, options of the user's command that have a name of aorta's would be taken for aorta's own, and another
    command than the user's would be judged.
    """

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses as click does.

        Raises:
            click.UsageError: Words that belong to no option do not follow ``--``.
        """
        given = list(args)
        rest = super().parse_args(ctx, args)
        words = list(ctx.params.get("command") or ())
        own = given[: len(given) - len(words)]
        if words and own[-1:] != ["--"] and not ctx.resilient_parsing:
            form = shlex.join([*ctx.command_path.split(), *own, "--", *words])
            raise click.UsageError(f"{words[0]!r} belongs to no option; a command to run goes after --, as in: {form}")
        return rest


class FilledPath(click.Path):
    """A path that is not empty: pathlib takes an empty one for the folder that we are in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path.

        Raises:
            click.BadParameter: It is empty.
        """
        if os.fspath(value) == "":
            self.fail("is empty; name a path", param, ctx)
        return super().convert(value, param, ctx)


class WholeNumber(click.IntRange):
    """A whole number within bounds, refused in the words in which the workflow's settings are."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the number.

        Raises:
            click.BadParameter: It is none, or beyond the bounds.
        """
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            bounds = f", {self.min} or more" if self.max is None else f" from {self.min} to {self.max}"
            found = value if str(value).removeprefix("-").isdigit() else repr(value)
            self.fail(f"must be a whole number{bounds}, not {found}", param, ctx)


mitigations_file = click.option(
    "--mitigations-file",
    "mitigations_files",
    multiple=True,
    type=FilledPath(),
    metavar="FILE",
    help="A JSON sidecar of mitigations and environments that may be named; may be repeated.",
)
extra_env = click.option(
    "--extra-env", multiple=True, metavar="KEY=VALUE", help="A variable for every trial; may be repeated."
)
workload_config = click.option(
    "--workload-config",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the workload: a YAML value, and dots in the key lead inward; may be repeated.",
)
trial_isolation = click.option(
    "--trial-isolation",
    type=click.Choice(["auto", "process", "in_process"]),
    help="Lifecycle of a trial's process [default: auto].",
)
collect = click.option("--collect", metavar="NAMES", help="Collectors for every cell, separated by commas.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
trial_timeout = click.option(
    "--trial-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Time limit of one trial, 0 for none [default: 86400].",
)


def paths(names: Sequence[str]) -> list[Path]:
    """Returns file names from the command line as paths."""
    return [Path(name) for name in names]


def given(context: click.Context, names: Sequence[str]) -> list[str]:
    """Returns the flags among ``names`` (parameters) that the user gave on the command line."""
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    return [flags[name] for name in names if context.get_parameter_source(name) is not ParameterSource.DEFAULT]


def together(*parts: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns one decorator for several options, in their order."""

    def decorate(command: Command) -> Command:
        for part in reversed(parts):
            command = part(command)
        return command

    return decorate


RECIPE_FLAGS = (
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

what_to_run = together(
    click.option("--recipe", metavar="FILE", help="The recipe to run."),
    click.option(
        "--mode",
        type=click.Choice(["matrix"]),
        help="With the flags below, and without --recipe: run what they say, one cell for each pair of the two axes.",
    ),
    click.option("--workload", metavar="NAME", help="The workload to run, instead of a recipe's."),
    click.option(
        "--mitigation-axis",
        default="none",
        show_default=True,
        metavar="NAMES",
        help="Mitigations, separated by commas: one cell for each, in each environment.",
    ),
    click.option(
        "--environment-axis",
        default="local",
        show_default=True,
        metavar="NAMES",
        help="Environments, separated by commas; image:REF names a Docker image in place.",
    ),
    click.option("--trials", type=int, metavar="N", help="Trials of each cell."),
    click.option("--steps", type=int, metavar="N", help="Steps of each trial."),
    click.option("--ticket", metavar="TEXT", help="The ticket that groups the output."),
    click.option("--baseline-cell", metavar="NAME", help="The baseline, such as none-local [default: as in a recipe]."),
    click.option(
        "--confound-threshold",
        type=float,
        metavar="RATIO",
        help="Flag cells whose steps take longer than this many times the baseline's [default: 1.15].",
    ),
    trial_isolation,
    click.option("--save-logs", is_flag=True, help="Keep each trial's standard output and error beside its result."),
    extra_env,
    workload_config,
    mitigations_file,
    click.option(
        "--collect",
        metavar="NAMES",
        help="Collectors for every cell, separated by commas, instead of what the recipe and its cells say.",
    ),
    click.option("--dry-run", is_flag=True, help="Check the recipe, show what would run, and write nothing."),
    click.option(
        "--output", default="triage_results", show_default=True, metavar="DIR", help="Folder that holds all runs."
    ),
    click.option(
        "--run-dir", metavar="DIR", help="Make this run directory, or continue it with the recipe as it is now."
    ),
    click.option("--fresh", is_flag=True, help="Start a new run even when an unfinished one of the same plan exists."),
    click.option(
        "--refresh", is_flag=True, help="Take the registry's present values where a continued run froze others."
    ),
    click.option("--strict", is_flag=True, help="Warnings are errors; end with 1 if a cell errored or never ran."),
)
"""The options of a command that runs a sweep: what runs, and where its results go."""

devices = click.option(
    "--devices",
    type=WholeNumber(min=1, max=4096),
    metavar="N",
    help="At most N trials at once on this host [default: one per accelerator, one without any].",
)


def nproc_per_node(what: str, default: str = "1") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns the option that says how many ranks a trial has on a host.

    Args:
        what: Which ranks, and where.
        default: What holds where it is not given.
    """
    return click.option(
        "--nproc-per-node",
        type=WholeNumber(min=1, max=1024),
        metavar="N",
        help=f"{what} [default: {default}].",
    )


rank_logs = click.option("--rank-logs", is_flag=True, help="Keep the output of every rank beside its trial's record.")


def check_what_to_run(context: click.Context, parameters: Mapping[str, Any]) -> None:
    """Refuses flags that contradict each other, or that name nothing to run.

    Raises:
        click.UsageError: They do.
    """
    if parameters["recipe"] is not None:
        contradicting = given(context, RECIPE_FLAGS)
        if contradicting:
            raise click.UsageError(
                f"{', '.join(contradicting)}: not with --recipe, which says what runs; change the recipe or drop it"
            )
    elif not given(context, ("mode", *RECIPE_FLAGS)):
        raise click.UsageError("give --recipe FILE, or --mode matrix with --workload, --trials and --steps")


def settings(parameters: Mapping[str, Any]) -> dict[str, object]:
    """Returns the workflow's settings that a sweep's options stand for."""
    config: dict[str, object] = {"output": parameters["output"]}
    optional = ("recipe", "run_dir", "devices", "trial_timeout", "nodes", "nproc_per_node")
    config.update({name: parameters[name] for name in optional if parameters.get(name) is not None})
    config.update({name: True for name in ("fresh", "refresh", "strict", "rank_logs") if parameters[name]})
    if parameters["collect"] is not None:
        # As a list, since Snakemake reads an empty string as nothing at all.
        config["collect"] = [name.strip() for name in parameters["collect"].split(",") if name.strip()]
    if parameters["command"]:
        config["command"] = list(parameters["command"])
    if parameters["mitigations_files"]:
        config["mitigations_file"] = list(parameters["mitigations_files"])
    return config
