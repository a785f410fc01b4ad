"""Writes ``docs/cli.md`` from the commands themselves: ``python -m aorta.cli.reference [--check]``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from aorta.cli import CONTEXT, main

_WIDTH = 110
_HEAD = """\
# Command line

Written by `python -m aorta.cli.reference` from the commands' own help; edit that, not this page.
"""


def commands(group: click.Command = main, path: str = "aorta") -> Iterator[tuple[str, click.Command]]:
    """Yields every command with the words that call it, a group before its members."""
    yield path, group
    if isinstance(group, click.Group):
        for name, command in group.commands.items():
            yield from commands(command, f"{path} {name}")


def help_text(path: str, command: click.Command) -> str:
    """Returns what ``--help`` prints, at a fixed width."""
    settings = {**CONTEXT, "terminal_width": _WIDTH, "color": False}
    context = click.Context(command, info_name=path, **settings)  # type: ignore[arg-type]
    return command.get_help(context)


def reference() -> str:
    """Returns the page."""
    parts = [_HEAD]
    for path, command in commands():
        text = "\n".join(line.rstrip() for line in help_text(path, command).splitlines())
        parts.append(f"## {path}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; end with 1 if the page is not what the commands say.")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("docs/cli.md"),
    show_default=True,
    help="The page.",
)
def write(check: bool, file: Path) -> None:
    """Write the reference of all commands.

    \b
    Example:
      python -m aorta.cli.reference --check
    """
    page = reference()
    if not check:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page, "utf-8")
    elif not file.is_file() or file.read_text("utf-8") != page:
        raise click.ClickException(f"{file} is not what the commands say; run: python -m aorta.cli.reference")


if __name__ == "__main__":
    write(prog_name="python -m aorta.cli.reference")
