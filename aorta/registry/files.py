"""Reads a small text file that somebody else wrote, whatever it turns out to be."""

from __future__ import annotations

import errno
import os
import stat

MAX_BYTES = 4 * 1024 * 1024
"""Largest recipe or sidecar that is read; the largest real ones are some tens of kilobytes."""


class UnreadableFileError(ValueError):
    """A file that is not there, is no regular file, or is too large. The message says which, without the path."""


def read_limited(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Returns the content of a regular file.

    Args:
        path: The file.
        max_bytes: Size above which the file is refused, in bytes.

    Raises:
        UnreadableFileError: The file cannot be read, is not a regular file, or is larger than ``max_bytes``.
    """
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to would otherwise wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise UnreadableFileError("the path has a NUL character in it") from error
    except OSError as error:
        raise UnreadableFileError(_reason(error)) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise UnreadableFileError("is a folder, not a file")
        if not stat.S_ISREG(mode):
            raise UnreadableFileError("is not a regular file (a pipe, socket or device?); save it to a file first")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise UnreadableFileError(_reason(error)) from error
    finally:
        os.close(descriptor)
    if len(content) > max_bytes:
        raise UnreadableFileError(f"is larger than {max_bytes // 1024} KiB, which no file of this kind should be")
    return content


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "no such file"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission denied; make the file readable"
    return f"cannot be read: {error.strerror or error}"
