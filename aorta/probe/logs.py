"""Reads logs of any size in constant memory, piece by piece and line by line.

Standard library only: a trial's supervisor imports this.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 8192
"""Longer lines are looked at in pieces of this size."""


def chunks(path: str, size: int | None) -> Iterator[bytes]:
    """Yields a log in pieces that end where a line ends, wherever the log has lines.

    Args:
        path: The log; nothing is yielded of one that cannot be read.
        size: Bytes that count, or None for all.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below)
    except OSError:
        return
    with file:
        left = os.fstat(file.fileno()).st_size if size is None else size
        rest = b""
        while left > 0 and (data := file.read(min(CHUNK_BYTES, left))):
            left -= len(data)
            rest += data
            end = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
            # A log without a line's end would grow without bounds.
            if end == 0 and len(rest) >= CHUNK_BYTES:
                end = len(rest)
            if end:
                yield rest[:end]
                rest = rest[end:]
        if rest:
            yield rest


def lines(path: str, size: int | None) -> Iterator[tuple[int, str]]:
    """Yields the lines of a log with their numbers, as an editor counts them: by line feeds, from 1.

    What progress bars overwrite with a carriage return is a line of its own, under the same number. Undecodable bytes
    are replaced.

    Args:
        path: The log.
        size: Bytes that count, or None for all.
    """
    number = 1
    for chunk in chunks(path, size):
        parts = chunk.split(b"\n")
        for index, part in enumerate(parts):
            if b"\r" in part or len(part) > MAX_LINE_BYTES:
                for piece in part.split(b"\r"):
                    for start in range(0, len(piece), MAX_LINE_BYTES):
                        yield number, piece[start : start + MAX_LINE_BYTES].decode("utf-8", "replace")
            elif part or index < len(parts) - 1:
                yield number, part.decode("utf-8", "replace")
            number += index < len(parts) - 1
