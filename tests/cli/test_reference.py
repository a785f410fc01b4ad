"""Every command and option is documented, and the page of them is what they say."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from aorta.cli import CONTEXT
from aorta.cli.reference import commands, help_text

COMMANDS = dict(commands())
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def examples(command: click.Command) -> list[str]:
    """The command lines below ``Example:`` in a command's help, continued lines joined."""
    _, _, block = inspect.cleandoc(command.help or "").partition("Example")
    lines = block.replace("\\\n", " ").splitlines()[1:]
    return [line.strip() for line in lines if line.startswith("  ")]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help_with_an_example(path: str) -> None:
    """The help says what the command does, and shows a command line that calls it or one of its members."""
    command = COMMANDS[path]
    assert (command.help or "").strip()
    assert examples(command)
    assert "Example" in help_text(path, command)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_says_what_it_is(path: str) -> None:
    """No option is without a text; an argument is spoken of in the command's own."""
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts}"


@pytest.mark.parametrize(
    ("path", "line"), [(path, line) for path, command in COMMANDS.items() for line in examples(command)]
)
def test_every_example_can_be_parsed(path: str, line: str) -> None:
    """An example names a command that exists, with options that it takes."""
    words = shlex.split(re.sub(r" (&&|>) .*", "", line))
    assert words[0] == "aorta"
    depth = max(depth for depth in range(1, len(words) + 1) if " ".join(words[:depth]) in COMMANDS)
    name = " ".join(words[:depth])
    if words[depth:] != ["--help"]:
        # With the settings of the group, because a command remembers the first help option that it was asked for.
        COMMANDS[name].make_context(name, words[depth:], **CONTEXT)


def test_the_page_is_what_the_commands_say() -> None:
    """docs/cli.md is written by: python -m aorta.cli.reference.

    In its own process: a command of Click keeps the first help option that it was asked for, whoever asked.
    """
    check = subprocess.run(
        [sys.executable, "-m", "aorta.cli.reference", "--check", "--file", str(PAGE)], capture_output=True, text=True
    )
    assert check.returncode == 0, check.stderr
