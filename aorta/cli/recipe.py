"""``aorta recipe``: look at recipes without running them."""

from __future__ import annotations

import json

import click

from aorta.cli import options


@click.group()
def recipe() -> None:
    """Check recipes, and see what they resolve to.

    \b
    Example:
      aorta recipe validate recipes/*/*.yaml
    """


@recipe.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options.mitigations_file
def validate(files: tuple[str, ...], mitigations_files: tuple[str, ...]) -> None:
    """Check recipes; name every fault of every file. Exit code 0: all are valid. 2: some are not.

    What a run of a valid recipe would warn about, such as a setting that its workload cannot use, is told on standard
    error.

    \b
    Example:
      aorta recipe validate recipes/training/*.yaml --mitigations-file site.json
    """
    from aorta.dag.errors import bad_input_exits
    from aorta.dag.planning import look_over
    from aorta.recipe.check import check_files
    from aorta.registry import load_registry

    with bad_input_exits():
        registry = load_registry(options.paths(mitigations_files))
    checks = check_files(
        files, registry, lambda recipe: [(finding.place, finding.message) for finding in look_over(recipe)]
    )
    for check in checks:
        for line in check.lines:
            click.echo(line, err=not check.valid)
        for line in check.warnings:
            click.echo(line, err=True)
    raise SystemExit(0 if all(check.valid for check in checks) else 2)


@recipe.command()
@click.argument("file")
@options.mitigations_file
@options.collect
@options.as_json
def show(file: str, mitigations_files: tuple[str, ...], collect: str | None, as_json: bool) -> None:
    """Print what a recipe's cells resolve to: each variable with the layer that it came from, settings, collectors.

    \b
    Example:
      aorta recipe show recipes/training/example-training-mitigations.yaml
    """
    from datetime import datetime

    from aorta.dag.errors import bad_input_exits
    from aorta.dag.planning import plan_recipe
    from aorta.dag.settings import read_settings
    from aorta.plan.show import cell_lines, cell_objects

    config = {"recipe": file, "mitigations_file": list(mitigations_files), "collect": collect}
    with bad_input_exits():
        plan = plan_recipe(read_settings(config), now=datetime.now().astimezone(), to_run=False)
    click.echo(json.dumps(cell_objects(plan), indent=1, ensure_ascii=False) if as_json else "\n".join(cell_lines(plan)))


@recipe.command()
@click.option(
    "--mode",
    type=click.Choice(["matrix", "probe"]),
    default="matrix",
    show_default=True,
    help="Kind of recipe: a matrix of a workload, or one that wraps a command.",
)
def schema(mode: str) -> None:
    """Print the JSON Schema of recipes.

    \b
    Example:
      aorta recipe schema > recipe.schema.json
    """
    from aorta._resources import load_schema

    click.echo(json.dumps(load_schema("probe" if mode == "probe" else "recipe"), indent=2, ensure_ascii=False))
