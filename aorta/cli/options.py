"""Options that several commands share, each written once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

Command = Callable[..., Any]

mitigations_file = click.option(
    "--mitigations-file",
    "mitigations_files",
    multiple=True,
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
