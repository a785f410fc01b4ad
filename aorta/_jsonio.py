"""JSON as this project reads and writes it: canonical text for hashing, and files that appear whole or not at all.

Standard library only, and light: every trial imports this before it starts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularError(ValueError):
    """Something else lies where a file belongs: a folder, a named pipe, a socket or a device. It was not opened.

    Attributes:
        path: Where.
    """

    def __init__(self, path: str, mode: int) -> None:
        super().__init__(f"is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file")
        self.path = path


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
        NotRegularError: It is no regular file, nor a link to one; it was not waited for.
        ValueError: The file is not UTF-8, not JSON, nested too deeply, or holds a bare NaN or infinity.
    """
    data = read_regular(path)
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def require_regular(path: str | os.PathLike[str]) -> None:
    """Makes sure that a path leads to a regular file.

    Raises:
        OSError: There is none, or it cannot be looked at.
        NotRegularError: There is something else.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise NotRegularError(os.fspath(path), mode)


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Returns what a regular file holds, and never waits for what is none.

    Raises:
        OSError: The file cannot be read.
        NotRegularError: It is no regular file, nor a link to one.
    """
    # Looked at first: opening a named pipe waits for a writer, and opening a device may do something to it.
    require_regular(path)
    with open(path, "rb", opener=_open_at_once) as file:
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def both_ends(path: str | os.PathLike[str], size: int) -> tuple[bytes, bytes]:
    """Returns the first ``size`` and the last two bytes of a regular file; nothing if it cannot be read."""
    try:
        require_regular(path)
        with open(path, "rb", opener=_open_at_once) as file:
            head = file.read(size)
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2))
            return head, file.read()
    except (OSError, NotRegularError):
        return b"", b""


def write_json_atomic(path: str | os.PathLike[str], value: Any) -> None:
    """Writes ``value`` as indented JSON so that a reader sees the whole file or none.

    Raises:
        OSError: The file cannot be written; no half-written file is left.
        ValueError: The value holds a NaN or an infinity.
    """
    write_text_atomic(path, json_text(value))


def json_text(value: Any) -> str:
    """Returns the indented JSON text of a value, as every file has it.

    Raises:
        ValueError: The value holds a NaN or an infinity.
    """
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json_through(path: str | os.PathLike[str], value: Any) -> None:
    """Writes ``value`` as indented JSON to whatever a user named, and leaves in place what is no plain file.

    A plain file appears whole or not at all. Of a symbolic link, the target is written and the link stays. A pipe or a
    device is written to: renaming a file over ``/dev/full`` would replace the device for the whole machine.

    Raises:
        OSError: It cannot be written, is a folder, or the path is empty.
        ValueError: The value holds a NaN or an infinity.
    """
    text = json_text(value)
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
    PendingFile(path).commit(text)


class PendingFile:
    """A file that is being written under a temporary name beside its place, which it takes whole or not at all.

    Args:
        path: Where the file belongs.
        room: Bytes to take up on the disk at once, so that a text of that size will still find room.

    Raises:
        OSError: The temporary file cannot be made, or there is no such room; nothing is left.
    """

    def __init__(self, path: str | os.PathLike[str], room: int = 0) -> None:
        self._target = os.fspath(path)
        self._temporary = temporary_name(os.path.dirname(self._target) or ".")
        self._descriptor = -1
        with self._or_nothing():
            # Created with 0666 and cut by the umask, as any program's output file would be.
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(self._temporary, flags, 0o666)
            self._write(bytes(room))

    def commit(self, text: str) -> None:
        """Writes ``text`` as UTF-8, flushes it to the disk, and gives the file its name.

        Raises:
            OSError: The file cannot be written; the temporary file is removed.
        """
        with self._or_nothing():
            data = text.encode("utf-8")
            self._write(data)
            os.ftruncate(self._descriptor, len(data))
            os.fsync(self._descriptor)
            lost = False
            try:
                os.replace(self._temporary, self._target)
            except FileNotFoundError:
                lost = True
        os.close(self._descriptor)
        self._descriptor = -1
        if lost:
            # Somebody who could not see this process took its file for a dead one's.
            PendingFile(self._target).commit(text)
        else:
            _sync_folder(os.path.dirname(self._target) or ".")

    def discard(self) -> None:
        """Removes the temporary file; does nothing after :meth:`commit`."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)

    def _write(self, data: bytes) -> None:
        view, done = memoryview(data), 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done:], done)

    @contextlib.contextmanager
    def _or_nothing(self) -> Iterator[None]:
        try:
            # A full disk's error names no file, and nobody knows the temporary one.
            with naming(self._target):
                yield
        except BaseException:
            self.discard()
            raise


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Names ``path``, and nothing else, in every system error of its block: that of a full disk names no file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def told(error: OSError | NotRegularError, otherwise: str | os.PathLike[str]) -> str:
    """Returns what a person is told of an error: the path, the reason, and what helps where that is plain.

    Args:
        error: The error.
        otherwise: The path to name where the error names none.
    """
    if isinstance(error, NotRegularError):
        return f"{error.path}: {error}; move it away, and run the same command again"
    path = os.fsdecode(error.filename) if error.filename else os.fspath(otherwise)
    reason = f"{path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{reason}; make room, and run the same command again"
    again = "move it away, and run the same command again"
    if error.errno == errno.EISDIR:
        return f"{path}: is a folder, where a file belongs; {again}"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        while not os.path.lexists(path) and os.path.dirname(path) not in ("", path):
            path = os.path.dirname(path)
        if os.path.lexists(path) and not os.path.isdir(path):
            return f"{path}: is no folder, and one belongs there; {again}"
    return reason


def temporary_name(folder: str) -> str:
    """Returns a path for a temporary file of this process.

    Short and independent of the target's name, which may already be as long as the file system allows; it says whose
    it is, so that what a killed process left can be told from what a living one is writing.
    """
    return os.path.join(folder, temporary_prefix(os.uname().nodename, os.getpid()) + os.urandom(6).hex())


def temporary_prefix(host: str, pid: int) -> str:
    """Returns how the temporary names of a process begin.

    Args:
        host: Its host's name.
        pid: Its process id.
    """
    return f".tmp-{temporary_host(host)}-{pid}-"


def temporary_host(host: str | None = None) -> str:
    """Returns a host's name, this one's by default, as temporary names have it."""
    name = os.uname().nodename if host is None else host
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)[:64] or "_"


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
