"""Recipes: YAML text to a checked ``Recipe``, and back."""

from __future__ import annotations

from aorta.recipe.errors import RecipeError, RecipeSchemaError
from aorta.recipe.loader import load_recipe, parse_recipe
from aorta.recipe.model import Cell, Collectors, Confound, Probe, Recipe, StopAfter
from aorta.recipe.resolved import dump_recipe, resolved_recipe

__all__ = [
    "Cell",
    "Collectors",
    "Confound",
    "Probe",
    "Recipe",
    "RecipeError",
    "RecipeSchemaError",
    "StopAfter",
    "dump_recipe",
    "load_recipe",
    "parse_recipe",
    "resolved_recipe",
]
