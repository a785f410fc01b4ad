"""Writes what was measured: a line for each layer, step and channel, and a summary of the first bad value.

Standard library only.
"""

from __future__ import annotations

import collections
import json
import math
import os
from typing import IO, Any

from aorta._jsonio import write_json_atomic

Row = dict[str, Any]


class Log:
    """The files of one rank.

    Args:
        folder: Where they go; it is made.
        rank: The rank's number.
        sample_every: Each ``sample_every``-th step is written.
        pre_context: Steps before a bad one that are written too.

    Raises:
        OSError: The folder or the file cannot be made.
    """

    def __init__(self, folder: str, rank: int, sample_every: int, pre_context: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self._summary_path = os.path.join(folder, f"summary_rank{rank}.json")
        self._file: IO[str] = open(os.path.join(folder, f"layers_rank{rank}.jsonl"), "w", encoding="utf-8")  # noqa: SIM115
        self._sample_every = sample_every
        self._pre_context = pre_context
        self._before: collections.deque[tuple[int, list[Row]]] = collections.deque(maxlen=pre_context)
        self._summary: dict[str, Any] = {
            "schema_version": "1.0",
            "rank": rank,
            "first_bad": None,
            "first_oob": None,
            "steps_measured": 0,
            "rows_written": 0,
            "totals": dict.fromkeys(("nan_count", "inf_count", "huge_count", "oob_count"), 0),
            "tensors": [],
            "warnings": [],
        }
        # What an earlier run left in the folder would be read as this one's.
        self.write_summary()

    @property
    def has_bad(self) -> bool:
        """Whether a value that is not finite has been seen."""
        return self._summary["first_bad"] is not None

    def warn(self, message: str) -> None:
        """Keeps a warning in the summary, which is written; of many only the first hundred.

        Raises:
            OSError: It cannot be written.
        """
        if len(self._summary["warnings"]) < 100:
            self._summary["warnings"].append(message)
            self.write_summary()

    def add_tensor(self, saved: dict[str, Any]) -> None:
        """Names a tensor that was saved in the summary, which is written.

        Raises:
            OSError: It cannot be written.
        """
        self._summary["tensors"].append(saved)
        self.write_summary()

    def unwarn(self, message: str) -> None:
        """Takes a warning out of the summary; it is written later."""
        if message in self._summary["warnings"]:
            self._summary["warnings"].remove(message)

    def add_step(self, step: int, rows: list[Row]) -> None:
        """Takes the measurements of a step, in the order in which they were made.

        Raises:
            OSError: They cannot be written.
        """
        self._summary["steps_measured"] += 1
        bad = False
        news = False
        for row in rows:
            for name in self._summary["totals"]:
                self._summary["totals"][name] += row[name]
            for key, kinds in (("first_bad", ("nan", "inf")), ("first_oob", ("oob",))):
                kind = next((kind for kind in kinds if row[f"{kind}_count"]), None)
                bad = bad or kind is not None
                if kind is not None and self._summary[key] is None:
                    self._summary[key] = {
                        "step": step,
                        "layer": row["layer"],
                        "channel": row["channel"],
                        "direction": "backward" if row["channel"] in ("igrad", "grad") else "forward",
                        "kind": kind,
                    }
                    news = True
        if bad:
            # Steps in between may have been written already, or have had nothing to measure.
            while self._before:
                earlier, waiting = self._before.popleft()
                if earlier >= step - self._pre_context:
                    self._write(waiting)
        if bad or step % self._sample_every == 0:
            self._write(rows)
        else:
            self._before.append((step, rows))
        # A run may be killed before it can say anything.
        if news:
            self.write_summary()

    def _write(self, rows: list[Row]) -> None:
        self._file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        self._file.flush()
        self._summary["rows_written"] += len(rows)

    def write_summary(self) -> None:
        """Writes the summary as it is now.

        Raises:
            OSError: It cannot be written.
        """
        write_json_atomic(self._summary_path, self._summary)

    def close(self) -> None:
        """Writes the summary, and ends.

        Raises:
            OSError: It cannot be written.
        """
        self._file.close()
        self.write_summary()


def row(step: int, layer: str, channel: str, values: list[float], more: dict[str, Any]) -> Row:
    """Returns a line of the log.

    Args:
        step: Number of the step, from 0.
        layer: Qualified name of the module.
        channel: What of it was measured.
        values: As ``aorta.instrumentation.layer_numerics.stats.FIELDS``.
        more: Diagnostics.
    """
    nan, inf, huge, oob, magnitude, largest, minus_smallest = values
    return {
        "step": step,
        "layer": layer,
        "channel": channel,
        "nan_count": int(nan),
        "inf_count": int(inf),
        "huge_count": int(huge),
        "oob_count": int(oob),
        "finite_abs_max": magnitude if math.isfinite(magnitude) else None,
        "finite_max": largest if math.isfinite(largest) else None,
        "finite_min": -minus_smallest if math.isfinite(minus_smallest) else None,
        **more,
    }
