"""Whether a trial's file is a whole record of the planned trial: a look at both ends, not a parse.

A run may have thousands of records of a megabyte each, and every start looks at all of them. Records are written
whole or not at all, so both ends tell a record from what a power cut or a full disk leaves; the aggregation then
reads and validates everything. Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import json
import os

from aorta._jsonio import both_ends

_HEAD = 4096
"""Far more than what stands before the fingerprint in a record."""


def is_current(path: str | os.PathLike[str], fingerprint: str) -> bool:
    """Whether ``path`` ends like a whole record and begins with this fingerprint; False if it cannot be read."""
    head, tail = both_ends(path, _HEAD)
    return tail == b"}\n" and f'"fingerprint": {json.dumps(fingerprint)}'.encode() in head
