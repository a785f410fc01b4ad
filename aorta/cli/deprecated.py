"""The old names of commands: a notice on standard error, then the same command."""

from __future__ import annotations

from typing import Any

import click

from aorta.cli.lists import list_environments, list_mitigations
from aorta.cli.sweep import run


def _alias(name: str, command: click.Command, old: str, new: str) -> click.Command:
    """Returns a command of the same parameters that says what it is called now, and does the same."""

    def callback(*args: Any, **kwargs: Any) -> Any:
        click.echo(f"aorta: notice: {old!r} is deprecated; use {new!r}", err=True)
        return click.get_current_context().invoke(_callback_of(command), *args, **kwargs)

    # Of the same class, which parses alike.
    return type(command)(
        name,
        params=list(command.params),
        callback=callback,
        help=f"Deprecated: use {new}.\n\n\b\nExample:\n  {new} --help",
        short_help=f"Deprecated: use {new}.",
    )


def _callback_of(command: click.Command) -> Any:
    assert command.callback is not None
    return command.callback


@click.group()
def triage() -> None:
    """Deprecated: use aorta sweep.

    \b
    Example:
      aorta sweep run --recipe recipes/training/example-training-ddp-smoke.yaml
    """


triage.add_command(_alias("run", run, "aorta triage run", "aorta sweep run"))
triage.add_command(
    _alias("list-mitigations", list_mitigations, "aorta triage list-mitigations", "aorta sweep list-mitigations")
)
triage.add_command(
    _alias("list-environments", list_environments, "aorta triage list-environments", "aorta sweep list-environments")
)

probe = _alias("probe", run, "aorta probe", "aorta sweep run")
