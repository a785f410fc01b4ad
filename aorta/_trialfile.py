"""Whether a trial's file is a whole record of the planned trial: a look at both ends, not a parse.

A run may have thousands of records of a megabyte each, and every start looks at all of them. Records are written
whole or not at all, so both ends tell a record from what a power cut or a full disk leaves; the aggregation then
reads and validates everything. Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import json

HEAD_BYTES = 4096
"""Far more than what stands before the verdict in a record."""


def begins_and_ends(head: bytes, tail: bytes, fingerprint: str) -> bool:
    """Whether the first and the last two bytes of a file are those of a whole record with this fingerprint."""
    return tail == b"}\n" and f'"fingerprint": {json.dumps(fingerprint)}'.encode() in head
