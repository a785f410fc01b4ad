"""Checks many recipe files and says what is wrong with each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aorta.recipe.errors import RecipeSchemaError
from aorta.recipe.loader import find_recipe, load_recipe
from aorta.recipe.model import Recipe
from aorta.registry.registry import Registry


@dataclass(frozen=True, kw_only=True)
class FileCheck:
    """What was found in one file.

    Attributes:
        file: The file, as it was named.
        valid: Whether it is a valid recipe.
        lines: What to tell a person: one line for a valid file, else one a fault.
        warnings: What a run of a valid file would warn about, a line each.
    """

    file: str
    valid: bool
    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def check_files(
    files: Iterable[str],
    registry: Registry,
    look_over: Callable[[Recipe], Iterable[tuple[str, str]]] = lambda recipe: (),
) -> list[FileCheck]:
    """Checks each file; a bad one does not keep the others from being checked.

    Args:
        files: Paths of recipes.
        registry: The mitigations and environments that they may name.
        look_over: Returns place and message of what a run of a valid recipe would warn about.
    """
    return [_check(file, registry, look_over) for file in files]


def _check(file: str, registry: Registry, look_over: Callable[[Recipe], Iterable[tuple[str, str]]]) -> FileCheck:
    shown = file if file.isprintable() else repr(file)[1:-1]
    try:
        recipe = load_recipe(find_recipe(file), registry)
    except RecipeSchemaError as error:
        # A fault of the file as a whole has its name already.
        lines = [f"{shown}: {fault}" if fault.path else str(fault) for fault in error.errors]
        return FileCheck(file=file, valid=False, lines=tuple(lines))
    cells = len(recipe.cells)
    what = "a command" if recipe.probe is not None else f"workload {recipe.workload}"
    told = f"{shown}: valid ({cells} {'cell' if cells == 1 else 'cells'} of {what})"
    warnings = tuple(f"{shown}: warning: {place}: {message}" for place, message in look_over(recipe))
    return FileCheck(file=file, valid=True, lines=(told,), warnings=warnings)
