"""``docs/race.md`` lists what there is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from aorta.race.buffers import BUFFER_KINDS
from aorta.race.config import ReproducerConfig

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "race.md").read_text("utf-8")


def test_page_lists_every_buffer_kind() -> None:
    """A name that a record or a planted fault can have is explained."""
    rows = {f"| `{kind.name}` | " for kind in BUFFER_KINDS}
    assert {row for row in rows if row not in PAGE} == set()


def test_page_lists_every_setting_with_its_default() -> None:
    """The table of settings is that of the code."""

    def shown(value: object) -> str:
        if isinstance(value, bool) or value is None:
            return str(value).lower()
        return str(list(value)) if isinstance(value, tuple) else str(value)

    defaults = ReproducerConfig()
    fields = [f.name for f in dataclasses.fields(ReproducerConfig) if f.name != "inject"]
    rows = {f"| `{name}` | {shown(getattr(defaults, name))} | " for name in fields}
    assert {row for row in rows if row not in PAGE} == set()
