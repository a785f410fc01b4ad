"""Trials that ended in an error and run again: how often that may be, and what each attempt was.

The attempts are kept beside the record until it is written, so that a sweep that is killed in between and run again
does not start to count anew. Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import contextlib
import os

from aorta._jsonio import read_json, write_json_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_FIELDS: dict[str, type | tuple[type, ...]] = {
    "exit_status": str,
    "error": (dict, type(None)),
    "started_at": str,
    "ended_at": str,
    "host": str,
    "device": dict,
}


class Attempts:
    """The attempts at one trial before the one that gives its record.

    Attributes:
        earlier: One entry an attempt, in order, as ``schemas/trial.schema.json`` describes them.
    """

    def __init__(self, cell: Mapping[str, Any], stem: str) -> None:
        """Takes up what an earlier supervisor of the same trial noted.

        Args:
            cell: The cell's request.
            stem: Path of the trial's files without their extension.
        """
        self._path = f"{stem}.attempts"
        self._fingerprint = cell["fingerprint"]
        self._most = int(cell.get("retry_errors", 0))
        self.earlier: list[dict[str, Any]] = self._noted()

    def again(self, record: Mapping[str, Any]) -> bool:
        """Tells whether the trial is to run once more, and notes the attempt if so.

        Only errors run again: another try at a trial that failed would hide the failure. A trial that could not even
        be launched as planned would not fare better.

        Args:
            record: The record of the attempt that has just ended.

        Raises:
            OSError: The note cannot be written.
        """
        if record["verdict"] != "error" or record["pid"] is None or len(self.earlier) >= self._most:
            return False
        entry = {name: record[name] for name in ("exit_status", "error", "started_at", "ended_at")}
        self.earlier.append({**entry, "host": record["host"]["hostname"], "device": record["device"]})
        write_json_atomic(self._path, {"fingerprint": self._fingerprint, "attempts": self.earlier})
        return True

    def number(self, record: dict[str, Any]) -> None:
        """Enters the earlier attempts into the record."""
        record["attempt"] += len(self.earlier)
        record["attempts"] = self.earlier

    def forget(self) -> None:
        """Removes the note, once the record has it."""
        if self.earlier:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def _noted(self) -> list[dict[str, Any]]:
        """Returns the attempts of a supervisor that died; none if the note is another request's, or spoilt."""
        try:
            note = read_json(self._path)
            if note["fingerprint"] == self._fingerprint and all(map(_is_entry, note["attempts"])):
                return list(note["attempts"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return []


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() == _FIELDS.keys()
        and all(isinstance(entry[name], kind) for name, kind in _FIELDS.items())
    )
