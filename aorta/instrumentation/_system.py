"""The machine as a probe sees it: files under a root, environment variables, tools, Python's search path.

Everything comes in as a parameter, so that tests can show a probe another machine.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys

from aorta.instrumentation._tool import ToolResult, run_tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

# sysfs says "this attribute means nothing here" with these (the speed of a link that is down, say).
_NOT_APPLICABLE = frozenset(
    {errno.EINVAL, errno.ENODATA, errno.EOPNOTSUPP, errno.ENODEV, errno.ENXIO, errno.ENOSYS, errno.ENOTTY}
)
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})


class Absent(Exception):
    """Raised by a probe for a thing that is not there; its message is the block's ``reason``."""


class System:
    """One machine.

    Attributes:
        root: Where ``/`` of the probed machine lies; anything but ``/`` is a test's or a mounted image's tree.
        environ: Environment variables that count, and that tools are run with.
        python_path: Folders to look for Python packages in.
    """

    def __init__(
        self,
        *,
        root: str = "/",
        environ: Mapping[str, str] | None = None,
        python_path: Sequence[str] | None = None,
    ) -> None:
        self.root = os.path.abspath(root)
        self.environ: dict[str, str] = dict(os.environ if environ is None else environ)
        self.python_path: list[str] = list(sys.path if python_path is None else python_path)

    @property
    def is_live(self) -> bool:
        """Whether the root is the running machine's own, so that system calls tell the same story as files."""
        return self.root == "/"

    def path(self, path: str) -> str:
        """Returns where an absolute path of the probed machine lies here."""
        if self.is_live or path == self.root or path.startswith(self.root + os.sep):
            return path
        return self.root + path if path.startswith("/") else os.path.join(self.root, path)


class Probe:
    """What one block's function works with: the machine, and a place for what it could not find out.

    Attributes:
        missing: Field of the block to the reason for its being null.
        failures: What should have been readable and was not; each makes the snapshot partial.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self.environ = system.environ
        self.missing: dict[str, str] = {}
        self.failures: list[str] = []

    def absent(self, field: str, reason: str) -> None:
        """Records why a field is null."""
        self.missing.setdefault(field, reason)

    def fail(self, reason: str) -> None:
        """Records something that could not be read although it is there."""
        if reason not in self.failures:
            self.failures.append(reason)

    def read(self, path: str, *, limit: int = 1 << 16, optional: bool = False) -> str | None:
        """Returns a text file's content without surrounding white space, or None.

        Args:
            path: Absolute path on the probed machine.
            limit: Most bytes to read.
            optional: Whether a refusal (root-only files) is ordinary and not worth reporting.
        """
        data = self.read_bytes(path, limit=limit, optional=optional)
        return None if data is None else data.decode("utf-8", "backslashreplace").strip("\0 \t\r\n")

    def read_bytes(self, path: str, *, limit: int = 1 << 16, optional: bool = False) -> bytes | None:
        """Returns at most ``limit`` bytes of a file, or None if it is not there or cannot be read."""
        try:
            # Non-blocking: opening a FIFO must not wait for a writer.
            descriptor = os.open(self.system.path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                return self._read_all(descriptor, limit)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            code = getattr(error, "errno", None)
            if not optional and code not in _NOT_THERE and code not in _NOT_APPLICABLE:
                self.fail(f"cannot read {path}: {getattr(error, 'strerror', None) or error}")
            return None

    @staticmethod
    def _read_all(descriptor: int, limit: int) -> bytes:
        parts: list[bytes] = []
        left = limit
        while left > 0:
            part = os.read(descriptor, min(left, 1 << 16))
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def read_int(self, path: str, *, optional: bool = False) -> int | None:
        """Returns a file's decimal or 0x-prefixed number, or None."""
        text = self.read(path, limit=256, optional=optional)
        return None if text is None else parse_int(text)

    def names(self, path: str) -> list[str]:
        """Returns a folder's entries in order; an absent folder has none."""
        try:
            return sorted(os.listdir(self.system.path(path)))
        except OSError as error:
            if error.errno not in _NOT_THERE:
                self.fail(f"cannot list {path}: {error.strerror}")
            return []

    def exists(self, path: str) -> bool:
        """Tells whether a path is there and reachable."""
        return os.path.exists(self.system.path(path))

    def is_file(self, path: str) -> bool:
        """Tells whether a path is a regular file, or a link to one."""
        try:
            return stat.S_ISREG(os.stat(self.system.path(path)).st_mode)
        except (OSError, ValueError):
            return False

    def is_dir(self, path: str) -> bool:
        """Tells whether a path is a folder, or a link to one."""
        return os.path.isdir(self.system.path(path))

    def link_name(self, path: str) -> str | None:
        """Returns the last part of where a symbolic link points (sysfs names drivers and devices so), or None."""
        try:
            return os.path.basename(os.readlink(self.system.path(path))) or None
        except OSError:
            return None

    def real(self, path: str) -> str:
        """Returns a path with its symbolic links resolved, as the probed machine would name it."""
        found = os.path.realpath(self.system.path(path))
        if not self.system.is_live and found.startswith(self.system.root + os.sep):
            return found[len(self.system.root) :]
        return found

    def tool(self, name: str, folders: Sequence[str] = ()) -> str | None:
        """Returns the program's path from PATH or from ``folders``, or None."""
        found = shutil.which(name, path=self.environ.get("PATH", os.defpath))
        for folder in folders:
            found = found or shutil.which(name, path=self.system.path(folder))
        return found

    def run(self, argv: Sequence[str], *, timeout_sec: float = 5.0) -> str | None:
        """Returns the standard output of a tool that is there, or None; a failure makes the snapshot partial."""
        try:
            result: ToolResult = run_tool(argv, env=self.environ, timeout_sec=timeout_sec)
        except (OSError, ValueError) as error:
            self.fail(f"cannot run {argv[0]}: {error}")
            return None
        failure = result.failure(timeout_sec)
        if failure is not None:
            self.fail(f"{os.path.basename(argv[0])} {failure}")
            return None
        return result.stdout


def parse_int(text: str) -> int | None:
    """Returns a decimal or 0x-prefixed number, or None for anything else."""
    try:
        return int(text, 16) if text[:2].lower() == "0x" else int(text)
    except ValueError:
        return None


def parse_key_values(text: str, separator: str) -> dict[str, str]:
    """Returns ``key<separator>value`` lines as a dict, the first of a repeated key winning, quotes taken off."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, found, value = line.partition(separator)
        if found and key.strip():
            values.setdefault(key.strip(), value.strip().strip("\"'"))
    return values


def clean(value: Any, depth: int = 0) -> Any:
    """Returns ``value`` as strict JSON can hold it: UTF-8 text, finite numbers, text keys, bounded depth.

    File and variable names that are no UTF-8 arrive as lone surrogates; they leave as backslash escapes.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else str(value)
    if depth < 32 and isinstance(value, dict):
        return {clean(str(key)): clean(item, depth + 1) for key, item in value.items()}
    if depth < 32 and isinstance(value, (list, tuple)):
        return [clean(item, depth + 1) for item in value]
    return clean(repr(value)[:1000])
