"""The command line. Each group has its own file; they parse, call and print, and hold no logic."""

from __future__ import annotations

import click

from aorta import __version__
from aorta.cli.bundle import bundle
from aorta.cli.deprecated import probe, triage
from aorta.cli.env import env
from aorta.cli.lists import environments, mitigations
from aorta.cli.recipe import recipe
from aorta.cli.run import run
from aorta.cli.selftest import selftest
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


for _command in (sweep, run, recipe, mitigations, environments, env, bundle, selftest, triage, probe):
    main.add_command(_command)
