"""Chooses the layers to measure, and knows which settings have met nothing.

A filter that meets nothing would otherwise look like a run without a fault. Standard library only.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection, Iterable, Iterator

from aorta.instrumentation.layer_numerics.spec import Follow, Scope, Spec, Watch

_MOST_SHOWN = 8
_MOST_COMPARED = 2000
"""Names that are compared with a wrong one, and names of tensors that are kept: both cost time in the run."""


class _Chooser:
    """A scope, what of it has been met, and the layers that it takes."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.matches = 0
        self.layers: set[str] = set()
        self.unmet_names = dict.fromkeys(scope.names)
        self.unmet_types = dict.fromkeys(scope.types)
        self.measured = False

    def takes(self, name: str, kind: str, is_leaf: bool) -> bool:
        """Tells whether a layer is to be measured; of those that match each ``stride``-th is."""
        for glob in [glob for glob in self.unmet_names if fnmatch.fnmatchcase(name, glob)]:
            del self.unmet_names[glob]
        self.unmet_types.pop(kind, None)
        if not self.scope.matches(name, kind, is_leaf):
            return False
        self.matches += 1
        if (self.matches - 1) % self.scope.stride:
            return False
        self.layers.add(name)
        return True

    def note_measured(self, measured: Collection[tuple[str, str]], channels: Collection[str]) -> None:
        """Takes note of whether a step has measured one of the channels at one of the layers."""
        if not self.measured:
            self.measured = any(layer in self.layers and channel in channels for layer, channel in measured)

    def unmet(self, names: Collection[str], types: Collection[str]) -> Iterator[str]:
        """Yields what no layer has met, by its place."""
        place = self.scope.place
        for glob in self.unmet_names:
            yield f"{place}: no layer matches {glob!r}{_known(glob, names)}"
        for kind in self.unmet_types:
            yield f"{place}: no layer is of type {kind!r}{_known(kind, types)}"
        if not (self.matches or self.unmet_names or self.unmet_types):
            yield f"{place}: no layer matches both the names and the types"


class Followed(_Chooser):
    """A tensor that is followed.

    Args:
        follow: What is followed.
    """

    def __init__(self, follow: Follow) -> None:
        super().__init__(follow.scope)
        self.follow = follow
        self.is_found = False
        self._names: dict[str, None] = {}

    def hear(self, names: Iterable[str]) -> None:
        """Keeps other names that were there in the tensor's place."""
        for name in names:
            if len(self._names) < _MOST_COMPARED:
                self._names[name] = None

    def lacks(self) -> str | None:
        """Returns what is wrong with a tensor whose modules are there, or None."""
        follow = self.follow
        if not self.is_found:
            known = _known(follow.tensor, self._names)
            start = f"{follow.place}: no module hands on a tensor called {follow.tensor!r}{known}"
            return f"{start}; one that is handed on by its position has no name"
        if not self.measured:
            return f"{follow.place}: {follow.tensor!r} holds nothing that can be measured; whole numbers need `bounds`"
        return None


class Choice:
    """What is measured of each layer.

    Args:
        spec: What to measure.
    """

    def __init__(self, spec: Spec) -> None:
        self._watched: list[tuple[Watch, _Chooser]] = [(watch, _Chooser(watch.scope)) for watch in spec.watch]
        self._followed = [Followed(follow) for follow in spec.follow]
        self._names: dict[str, None] = {}
        self._types: dict[str, None] = {}

    def of(self, name: str, kind: str, is_leaf: bool) -> tuple[frozenset[str], tuple[Followed, ...]]:
        """Returns the channels to measure of a layer, and the tensors to follow there.

        Args:
            name: Qualified name.
            kind: Class name.
            is_leaf: Whether the layer holds no other.
        """
        self._names[name] = self._types[kind] = None
        taking = [watch for watch, chooser in self._watched if chooser.takes(name, kind, is_leaf)]
        channels = frozenset(channel for watch in taking for channel in watch.tensors)
        return channels, tuple(one for one in self._followed if one.takes(name, kind, is_leaf))

    def note_measured(self, measured: Collection[tuple[str, str]]) -> None:
        """Takes note of the layers and channels that a step has measured."""
        for watch, chooser in self._watched:
            chooser.note_measured(measured, watch.tensors)
        for one in self._followed:
            one.note_measured(measured, [channel_of(one.follow, place) for place in ("input", "output")])

    def unmet(self) -> list[str]:
        """Returns a message for each setting that has met nothing up to now.

        What is known besides, and may grow with the run, follows a message's first semicolon.
        """
        if not self._names:
            return ["nothing was measured: no module was called where it can be seen"]
        found: list[str] = []
        for watch, chooser in self._watched:
            found += chooser.unmet(self._names, self._types)
            if chooser.layers and not chooser.measured:
                what = ", ".join(watch.tensors) or "tensor"
                start = f"{chooser.scope.place}: nothing was measured: no {what} with values was seen"
                found.append(f"{start}; the layers that match: {_shown(sorted(chooser.layers))}")
        for one in self._followed:
            found += one.unmet(self._names, self._types)
            if one.layers and (lack := one.lacks()) is not None:
                found.append(lack)
        return found


def channel_of(follow: Follow, place: str) -> str:
    """Returns the channel that a followed tensor is logged under.

    Args:
        follow: What is followed.
        place: ``input`` or ``output``.
    """
    return f"{follow.tensor}@{place}"


def _known(wanted: str, known: Collection[str]) -> str:
    """Returns the end of a message: what is near, and what there is."""
    if not known:
        return "; there is none"
    near = _near(wanted, known)
    start = f"; near: {_shown(near)}" if near else ""
    return f"{start}; there {'is' if len(known) == 1 else 'are'} {len(known)}: {_shown(known)}"


def _near(wanted: str, known: Iterable[str]) -> list[str]:
    literal = wanted.strip("*?.").casefold()
    if not literal or len(literal) > 100:
        return []
    folded = {name.casefold(): name for name, _ in zip(known, range(_MOST_COMPARED), strict=False)}
    # A wrapper puts something before a layer's name, and a user may know only its end.
    holding = [name for name in folded if literal in name or name in literal.split(".")]
    close = difflib.get_close_matches(literal, list(folded), n=3, cutoff=0.5)
    return [folded[name] for name in dict.fromkeys([*close, *holding])][:3]


def _shown(names: Collection[str]) -> str:
    shown = [repr(name) for name, _ in zip(names, range(_MOST_SHOWN), strict=False)]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
