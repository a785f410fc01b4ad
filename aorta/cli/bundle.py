"""``aorta bundle``: pack a run to hand it out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aorta.cli import options

if TYPE_CHECKING:
    from aorta.probe.bundle import Bundle


class _Refused(click.ClickException):
    exit_code = 2


@click.command()
@click.argument("run_dir", type=options.FilledPath(path_type=Path))
@click.option("--ticket", metavar="NAME", help="The ticket that the bundle is for [default: the run's].")
@click.option("--review", is_flag=True, help="Show what would be packed and what taken out; write nothing.")
@click.option(
    "--output",
    type=options.FilledPath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The new file [default: TICKET.tar.gz, or TICKET-RUN.tar.gz, here].",
)
@click.option(
    "--redaction-from",
    type=options.FilledPath(exists=True, dir_okay=False, path_type=Path),
    metavar="RECIPE",
    help="Take the redaction: block of this recipe [default: the run's own recipe].",
)
def bundle(run_dir: Path, ticket: str | None, review: bool, output: Path | None, redaction_from: Path | None) -> None:
    """Pack a run directory as a tar.gz to hand out, redacted as its recipe's redaction: block says.

    The run directory is only read, and only the run's own files are packed: other runs that lie in its folder, and
    whatever else is not its own, are left out and named. manifest.json in the bundle lists each file
    with its SHA-256, its size and what was taken out of it. A run without a ticket, and one with symbolic links that
    leave its directory, is refused.

    \b
    Examples:
      aorta bundle triage_results/TICKET-1234 --review
      aorta bundle triage_results/TICKET-1234 --output for-the-vendor.tar.gz
    """
    from aorta.probe import bundle as packing

    try:
        name = packing.find_ticket(run_dir, ticket)
        redactor, source = packing.find_redactor(run_dir, redaction_from)
        target = packing.default_output(run_dir, name) if output is None else output
        packing.check_output(run_dir, target)
        click.echo(f"redaction: {source}", err=True)
        packed = packing.review(run_dir, name, redactor) if review else packing.write(run_dir, name, redactor, target)
    except packing.BundleError as error:
        raise _Refused(str(error)) from error
    _show(packed, review)
    click.echo(f"nothing was written; without --review this would be {target}" if review else str(target))


def _show(packed: Bundle, samples: bool) -> None:
    from aorta.probe.redact import KINDS
    from aorta.text import columns

    rows = [["file", "bytes", *KINDS]]
    for entry in packed.entries:
        if entry.link is not None:
            rows.append([f"{entry.path} -> {entry.link}", *[""] * (1 + len(KINDS))])
        else:
            rows.append([entry.path, str(entry.size), *(str(entry.redactions[kind]) for kind in KINDS)])
    for line in columns(rows):
        click.echo(line)
    for path, reason in packed.left_out:
        click.echo(f"left out: {path}: {reason}")
    if samples:
        for entry in packed.entries:
            for number, text in entry.samples:
                click.echo(f"{entry.path}:{number}: {text}")
