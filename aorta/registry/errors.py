"""What goes wrong in a registry."""

from __future__ import annotations


class RegistryError(ValueError):
    """A registry that cannot be built: a repeated name, or a sidecar that is not valid.

    The message names the place, the value and the remedy, one line a fault.
    """


class UnknownNameError(RegistryError, KeyError):
    """A name that the registry does not hold, or whose plugin is broken.

    Attributes:
        kind: ``mitigation`` or ``environment``.
        name: The name that was asked for.
    """

    def __init__(self, message: str, *, kind: str, name: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.name = name

    # KeyError shows its argument's repr, which would quote the sentence.
    def __str__(self) -> str:
        return str(self.args[0])
