"""Reads the GNU build id of a shared library: the identity of the build itself, whatever the file is called."""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
# Linkers put the notes near the start and keep them small; a hostile file must not make the probe read gigabytes.
_MOST_HEADERS = 256
_MOST_NOTE_BYTES = 1 << 16


def build_id(path: str) -> str | None:
    """Returns the build id as hexadecimal digits, or None if the file is no 64-bit little-endian ELF or has none.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            return None
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        if size < 56:
            return None
        for index in range(min(count, _MOST_HEADERS)):
            entry = _read_at(file, offset + index * size, 56)
            if len(entry) < 56:
                return None
            kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", entry)
            if kind == _PT_NOTE:
                found = _find_in_notes(_read_at(file, start, min(length, _MOST_NOTE_BYTES)))
                if found is not None:
                    return found
    return None


def _read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    if offset >= 1 << 62:
        return b""
    file.seek(offset)
    return file.read(length)


def _find_in_notes(notes: bytes) -> str | None:
    position = 0
    while position + 12 <= len(notes):
        name_size, value_size, kind = struct.unpack_from("<III", notes, position)
        name_at = position + 12
        value_at = name_at + (name_size + 3 & ~3)
        if kind == _NT_GNU_BUILD_ID and notes[name_at : name_at + name_size] == b"GNU\0":
            value = notes[value_at : value_at + value_size]
            return value.hex() if value and len(value) == value_size else None
        position = value_at + (value_size + 3 & ~3)
    return None
