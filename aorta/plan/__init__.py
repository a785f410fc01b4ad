"""From a recipe to a plan: every (cell, trial) with its variables resolved and frozen, and the folder they go to.

Importing this package is light; :func:`aorta.plan.compile.compile_plan` alone needs the recipe and registry rooms.
"""

from aorta.plan.model import Plan, PlannedCell
from aorta.plan.paths import RunLayout, safe_name

__all__ = ["Plan", "PlannedCell", "RunLayout", "safe_name"]
