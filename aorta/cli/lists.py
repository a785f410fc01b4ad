"""Lists of what recipes can name: mitigations, environments and workloads."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from aorta.cli import options


def _print(rows: Callable[[], list[dict[str, Any]]], as_json: bool) -> None:
    from aorta.dag.errors import bad_input_exits
    from aorta.registry.listing import table

    with bad_input_exits():
        found = rows()
    click.echo(json.dumps(found, indent=1, ensure_ascii=False) if as_json else "\n".join(table(found)))


def _list_mitigations(files: Sequence[str], as_json: bool) -> None:
    from aorta.registry import load_registry
    from aorta.registry.listing import mitigation_rows

    _print(lambda: mitigation_rows(load_registry(options.paths(files))), as_json)


def _list_environments(files: Sequence[str], as_json: bool) -> None:
    from aorta.registry import load_registry
    from aorta.registry.listing import environment_rows

    _print(lambda: environment_rows(load_registry(options.paths(files))), as_json)


@click.command("list-mitigations")
@options.mitigations_file
@options.as_json
def list_mitigations(mitigations_files: tuple[str, ...], as_json: bool) -> None:
    """List the mitigations: name, where it comes from, and the variables that it sets.

    \b
    Example:
      aorta sweep list-mitigations --mitigations-file site.json
    """
    _list_mitigations(mitigations_files, as_json)


@click.command("list-environments")
@options.mitigations_file
@options.as_json
def list_environments(mitigations_files: tuple[str, ...], as_json: bool) -> None:
    """List the environments: name, where it comes from, and what it describes.

    \b
    Example:
      aorta sweep list-environments --json
    """
    _list_environments(mitigations_files, as_json)


@click.command("list-workloads")
@options.as_json
def list_workloads(as_json: bool) -> None:
    """List the registered workloads: name, package, launch mode, ranks needed, isolation, and class.

    \b
    Example:
      aorta sweep list-workloads
    """
    from aorta.registry.listing import workload_rows

    _print(workload_rows, as_json)


_file = click.option(
    "--file",
    "files",
    multiple=True,
    type=options.FilledPath(),
    metavar="SIDECAR",
    help="A JSON sidecar to include; may be repeated.",
)


@click.group()
def mitigations() -> None:
    """The mitigations that recipes can name.

    \b
    Example:
      aorta mitigations list
    """


@mitigations.command("list")
@_file
@options.as_json
def mitigations_list(files: tuple[str, ...], as_json: bool) -> None:
    """List the mitigations: name, where it comes from, and the variables that it sets.

    \b
    Example:
      aorta mitigations list --file site.json
    """
    _list_mitigations(files, as_json)


@click.group()
def environments() -> None:
    """The environments that recipes can name.

    \b
    Example:
      aorta environments list
    """


@environments.command("list")
@_file
@options.as_json
def environments_list(files: tuple[str, ...], as_json: bool) -> None:
    """List the environments: name, where it comes from, and what it describes.

    \b
    Example:
      aorta environments list --json
    """
    _list_environments(files, as_json)
