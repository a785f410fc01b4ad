"""What a trial ran on: the environment snapshot.

Every module of this package that the probe loads, and ``aorta/__init__.py`` and ``aorta/_jsonio.py`` above it, keeps
to the standard library and to Python 3.8 syntax: the probe runs inside containers whose Python is the user's,
old or bare, with nothing installed. Annotations may be newer, since ``from __future__ import annotations``
leaves them unevaluated. A test compiles each of these files as 3.8.

This file itself imports nothing: a trial's supervisor asks it for :func:`is_valid_snapshot` thousands of times.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own constant would cost the import of typing
if TYPE_CHECKING:
    from aorta.instrumentation._collect import collect_env
    from aorta.instrumentation._shape import SCHEMA_VERSION, is_valid_snapshot, placeholder_snapshot

__all__ = ["SCHEMA_VERSION", "collect_env", "is_valid_snapshot", "placeholder_snapshot"]


def __getattr__(name: str) -> object:
    """Loads a public name when it is first used (PEP 562)."""
    if name == "collect_env":
        from aorta.instrumentation import _collect as module
    elif name in __all__:
        from aorta.instrumentation import _shape as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(module, name)
    globals()[name] = value
    return value
