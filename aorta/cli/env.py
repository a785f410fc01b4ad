"""``aorta env``: what this machine and this Python are."""

from __future__ import annotations

import json
from pathlib import Path

import click

from aorta._jsonio import write_json_through
from aorta.cli import options
from aorta.instrumentation import collect_env
from aorta.instrumentation._view import (
    UnknownFieldError,
    field_value,
    render_reasons,
    render_summary,
    render_value,
)


@click.group("env")
def env() -> None:
    """Describe the environment that trials run in.

    \b
    Example:
      aorta env probe --summary
    """


@env.command("probe")
@click.option(
    "-o",
    "--output",
    type=options.FilledPath(dir_okay=False, path_type=Path),
    help="Write the snapshot to a file.",
)
@click.option("--summary", is_flag=True, help="Print a table of one line a block.")
@click.option("--field", metavar="DOTTED.PATH", help="Print one value, such as pytorch.version.")
@click.option("--no-torch", is_flag=True, help="Do not import PyTorch; its flags and back-ends stay unknown.")
@click.option("-v", "--verbose", is_flag=True, help="Say on standard error what is absent or unknown, and why.")
def probe(output: Path | None, summary: bool, field: str | None, no_torch: bool, verbose: bool) -> None:
    """Take a snapshot of the hardware, drivers, libraries and settings here; print it as JSON.

    \b
    Examples:
      aorta env probe --summary
      aorta env probe -o env.json
      aorta env probe --field pytorch.version
    """
    if (output is not None) + summary + (field is not None) > 1:
        raise click.UsageError("-o, --summary and --field exclude each other")
    snapshot = collect_env(import_torch=not no_torch)
    if verbose:
        click.echo(render_reasons(snapshot), err=True, nl=False)
    if output is not None:
        try:
            write_json_through(output, snapshot)
        except OSError as error:
            raise click.ClickException(f"{output}: cannot be written: {error.strerror}") from error
    elif summary:
        click.echo(render_summary(snapshot), nl=False)
    elif field is not None:
        try:
            click.echo(render_value(field_value(snapshot, field)))
        except UnknownFieldError as error:
            raise click.UsageError(str(error)) from error
    else:
        click.echo(json.dumps(snapshot, indent=1, ensure_ascii=False))
