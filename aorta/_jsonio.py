"""JSON as this project reads and writes it: canonical text for hashing, and files that appear whole or not at all.

Standard library only, and light: every trial imports this before it starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def canonical_json(value: Any) -> str:
    """Returns the one JSON text that equal values share: sorted keys, no white space, no NaN.

    Raises:
        ValueError: The value holds a NaN or an infinity, which JSON cannot say.
        TypeError: The value has no JSON form.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def json_digest(value: Any) -> str:
    """Returns the SHA-256 of the canonical JSON of ``value``, as 64 hexadecimal digits."""
    import hashlib  # not needed, and not paid for, by a trial

    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads one JSON file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not UTF-8, not JSON, nested too deeply, or holds a bare NaN or infinity.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def both_ends(path: str | os.PathLike[str], size: int) -> tuple[bytes, bytes]:
    """Returns the first ``size`` and the last two bytes of a regular file; nothing if it cannot be read."""
    try:
        # Opening a named pipe would wait for ever.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b"", b""
        with open(path, "rb") as file:
            head = file.read(size)
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2))
            return head, file.read()
    except OSError:
        return b"", b""


def write_json_atomic(path: str | os.PathLike[str], value: Any) -> None:
    """Writes ``value`` as indented JSON so that a reader sees the whole file or none.

    Raises:
        OSError: The file cannot be written; no half-written file is left.
        ValueError: The value holds a NaN or an infinity.
    """
    write_text_atomic(path, _indented(value))


def _indented(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json_through(path: str | os.PathLike[str], value: Any) -> None:
    """Writes ``value`` as indented JSON to whatever a user named, and leaves in place what is no plain file.

    A plain file appears whole or not at all. Of a symbolic link, the target is written and the link stays. A pipe or a
    device is written to: renaming a file over ``/dev/full`` would replace the device for the whole machine.

    Raises:
        OSError: It cannot be written, is a folder, or the path is empty.
        ValueError: The value holds a NaN or an infinity.
    """
    text = _indented(value)
    named = os.fspath(path)
    target = os.path.realpath(named) if os.path.islink(named) else named
    try:
        found: os.stat_result | None = os.stat(named)
    except FileNotFoundError:
        found = None
    if found is None or (stat.S_ISREG(found.st_mode) and _is_the_same(found, target)):
        write_text_atomic(target, text)
        return
    with open(named, "wb") as file:
        file.write(text.encode("utf-8"))


def _is_the_same(found: os.stat_result, path: str) -> bool:
    """Links below ``/proc`` lead to open files that may have no path, or by now another one."""
    try:
        return os.path.samestat(found, os.stat(path))
    except OSError:
        return False


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Writes ``text`` as UTF-8 under a unique temporary name in the same folder, flushes it to disk, and renames it.

    Raises:
        OSError: The file cannot be written; the temporary file is removed.
    """
    target = os.fspath(path)
    folder = os.path.dirname(target) or "."
    temporary = temporary_name(folder)
    try:
        # Created with 0666 and cut by the umask, as any program's output file would be.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            error.filename = target  # a full disk's error names no file, and nobody knows the temporary one
        raise
    _sync_folder(folder)


def temporary_name(folder: str) -> str:
    """Returns a path for a temporary file of this process.

    Short and independent of the target's name, which may already be as long as the file system allows; it says whose
    it is, so that what a killed process left can be told from what a living one is writing.
    """
    return os.path.join(folder, f".tmp-{temporary_host()}-{os.getpid()}-{os.urandom(6).hex()}")


def temporary_host() -> str:
    """Returns the host's name as temporary names have it."""
    name = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in os.uname().nodename)
    return name[:64] or "_"


def _sync_folder(folder: str) -> None:
    """Makes the rename itself durable; some file systems do not allow this, and then it is skipped."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
