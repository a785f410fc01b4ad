"""What the loader says about a recipe that is not valid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RecipeError:
    """One fault of a recipe.

    Attributes:
        path: The place, such as ``cells[2].mitigations``; empty for the file as a whole.
        message: What was found and what would be right.
        line: Line in the file, counted from 1, where one is known.
    """

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        place = f" [line {self.line}]" if self.line is not None else ""
        return f"{self.path or 'recipe'}: {self.message}{place}"


class RecipeSchemaError(ValueError):
    """A recipe that is not valid, with all of its faults in the order of the file.

    ``str()`` gives one line a fault.

    Attributes:
        errors: The faults; never empty.
        source: The file, or another name of where the text came from.
    """

    def __init__(self, errors: Iterable[RecipeError], source: str = "recipe") -> None:
        self.errors: tuple[RecipeError, ...] = tuple(errors)
        self.source = source
        super().__init__("\n".join(map(str, self.errors)))

    # The default would call __init__ with the joined message.
    def __reduce__(self) -> tuple[type[RecipeSchemaError], tuple[tuple[RecipeError, ...], str]]:
        return (type(self), (self.errors, self.source))
