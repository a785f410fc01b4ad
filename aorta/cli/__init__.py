"""The command line. Each group has its own file; they parse, call and print, and hold no logic."""

from __future__ import annotations

import click

from aorta import __version__
from aorta.cli.env import env
from aorta.cli.sweep import sweep

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="aorta")
def main() -> None:
    """Triage intermittent GPU failures: run a recipe of mitigations, get a matrix of failure rates.

    \b
    Example:
      aorta sweep run --recipe recipes/training/example-training-mitigations.yaml
    """


main.add_command(sweep)
main.add_command(env)
