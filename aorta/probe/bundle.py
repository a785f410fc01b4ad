"""Packs a run directory to be handed out: redacted, listed file by file, and without a way out of the directory.

The run directory is only read. Owners' names and numbers are not packed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from aorta import __version__
from aorta._jsonio import NotRegularError, read_json, read_regular, temporary_name
from aorta.plan.model import RUN_AGAIN
from aorta.plan.own import NOT_OF_THE_RUN, OwnFiles
from aorta.plan.paths import safe_name
from aorta.probe.redact import KINDS, RedactionError, Redactor
from aorta.text import shortened

MANIFEST = "manifest.json"
FOLDER = "run"
"""In a bundle, the folder of the run's files; the manifest lies beside it."""

_PIECE = 1 << 20
_SAMPLES = 5
_SAMPLE_WIDTH = 160


class BundleError(Exception):
    """A run directory that cannot be packed; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of a bundle.

    Attributes:
        path: Its path below the run directory.
        size: Bytes as packed.
        sha256: Of the packed bytes.
        redactions: How much of each kind was taken out.
        link: Where a symbolic link points, relative to its folder; None for a file.
        samples: (line number, line as packed) of the first lines that were redacted.
    """

    path: str
    size: int = 0
    sha256: str = ""
    redactions: Mapping[str, int] = field(default_factory=dict)
    link: str | None = None
    samples: tuple[tuple[int, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns what the manifest says of it."""
        if self.link is not None:
            return {"path": self.path, "link": self.link}
        return {"path": self.path, "size": self.size, "sha256": self.sha256, "redactions": dict(self.redactions)}


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What a bundle holds.

    Attributes:
        ticket: The ticket that it is for.
        redactor: What was taken out.
        entries: Its files, sorted by path.
        left_out: Path and reason of what is not in it.
    """

    ticket: str
    redactor: Redactor
    entries: tuple[Entry, ...]
    left_out: tuple[tuple[str, str], ...]

    def manifest(self) -> dict[str, Any]:
        """Returns the content of ``manifest.json``."""
        return {
            "schema_version": "1.0",
            "aorta_version": __version__,
            "ticket": self.ticket,
            "redaction": self.redactor.to_json(),
            "files": [entry.to_json() for entry in self.entries],
            "left_out": [{"path": path, "reason": reason} for path, reason in self.left_out],
        }


def find_ticket(run_dir: Path, given: str | None) -> str:
    """Returns the ticket that a bundle is for.

    Args:
        run_dir: The run directory.
        given: A ticket that a person named, which comes first.

    Raises:
        BundleError: There is none, or this is no run directory.
    """
    plan = _read_plan(run_dir)
    if given is not None and not given.strip():
        raise BundleError("--ticket: is empty; give the ticket that the bundle is for, or leave --ticket out")
    ticket = given if given is not None else (plan.get("ticket") if isinstance(plan, dict) else None)
    if not isinstance(ticket, str) or not ticket.strip():
        raise BundleError(f"{run_dir}: the run has no ticket, and a bundle must be for one; name it with --ticket")
    return ticket


def _read_plan(run_dir: Path) -> Any:
    path = run_dir / "plan.json"
    try:
        return read_json(path)
    except FileNotFoundError as error:
        raise BundleError(f"{run_dir}: is no run directory: it has no plan.json") from error
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: cannot be read: {error}") from error


def find_redactor(run_dir: Path, recipe: Path | None) -> tuple[Redactor, str]:
    """Returns what to take out, and where that was said.

    Args:
        run_dir: The run directory; its own recipe is asked if no other is named.
        recipe: A recipe whose ``redaction:`` block counts instead.

    Raises:
        BundleError: The recipe cannot be read, has no block although it was named, or has a wrong one.
    """
    source = recipe or run_dir / "recipe.resolved.yaml"
    if recipe is None and not source.exists():
        return Redactor.from_mapping(None), "the usual names of secrets: the run has no recipe"
    block = _read_block(source)
    if block is None:
        if recipe is not None:
            raise BundleError(
                f"{source}: has no redaction: block; name a recipe that has one, or drop --redaction-from"
            )
        return Redactor.from_mapping(None), f"the usual names of secrets: {source} has no redaction: block"
    try:
        return Redactor.from_mapping(block, f"{source}: redaction"), str(source)
    except RedactionError as error:
        raise BundleError(str(error)) from error


def _read_block(source: Path) -> Any:
    from aorta.recipe.yaml_data import Document
    from aorta.recipe.yaml_nodes import YamlError

    try:
        data = Document(read_regular(source)).data
    except OSError as error:
        raise BundleError(f"{source}: cannot be read: {error.strerror}") from error
    except NotRegularError as error:
        raise BundleError(f"{source}: {error}") from error
    except YamlError as error:
        raise BundleError(f"{source}: is no YAML: {error}") from error
    if not isinstance(data, dict):
        raise BundleError(f"{source}: is no recipe: it holds no mapping")
    return data.get("redaction")


def default_output(run_dir: Path, ticket: str) -> Path:
    """Returns where a bundle goes if nobody says: ``<ticket>-<run>.tar.gz`` here, the ticket said once."""
    name, run = safe_name(ticket), run_dir.resolve().name
    return Path(f"{run if run == name or run.startswith(f'{name}-') else f'{name}-{run}'}.tar.gz")


def review(run_dir: Path, ticket: str, redactor: Redactor) -> Bundle:
    """Returns what a bundle would hold; writes nothing.

    Raises:
        BundleError: A symbolic link leaves the directory, or a file cannot be read.
    """
    return _pack(run_dir, ticket, redactor, None)


def write(run_dir: Path, ticket: str, redactor: Redactor, output: Path) -> Bundle:
    """Writes a bundle; it appears whole or not at all. The same directory gives the same bytes.

    Args:
        run_dir: The run directory.
        ticket: The ticket that it is for.
        redactor: What to take out.
        output: The new file.

    Raises:
        BundleError: It exists, lies in the run directory, or cannot be written; a symbolic link leaves the directory; a
            file cannot be read.
    """
    check_output(run_dir, output)
    temporary = temporary_name(os.path.dirname(output) or ".")
    try:
        with open(temporary, "xb") as raw:
            # Neither the time nor the temporary name goes into the archive's head.
            with (
                gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                bundle = _pack(run_dir, ticket, redactor, archive)
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(temporary, output)
    except OSError as error:
        raise BundleError(f"{output}: cannot be written: {error.strerror}") from error
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)
    return bundle


def check_output(run_dir: Path, output: Path) -> None:
    """Refuses a place for a bundle where something is, or that belongs to the run.

    Raises:
        BundleError: It is one.
    """
    if os.path.lexists(output):
        raise BundleError(f"{output}: exists already; name another file with --output")
    if output.resolve().is_relative_to(run_dir.resolve()):
        raise BundleError(
            f"{output}: lies in the run directory, which stays as it is; name another place with --output"
        )
    if not output.resolve().parent.is_dir():
        raise BundleError(f"{output}: there is no folder {output.parent}; make it first")


def _pack(run_dir: Path, ticket: str, redactor: Redactor, archive: tarfile.TarFile | None) -> Bundle:
    found = _walk(run_dir)
    own = {path for path, reason in found if reason is None}
    _refuse_links(run_dir, own)
    own_places = own | {parent for path in own for parent in path.parents}
    left_out: list[tuple[str, str]] = []
    files: list[Path] = []
    for path, not_own in found:
        reason = not_own or _reason_to_leave_out(run_dir, path, redactor, own_places)
        if reason is None:
            files.append(path)
        else:
            left_out.append((path.relative_to(run_dir).as_posix(), reason))
    # A secret that stands beside its name in one file may stand alone in another.
    if redactor.env_keys:
        for path in files:
            if not path.is_symlink():
                for line in _lines(path):
                    redactor.learn(line)
    root = safe_name(ticket)
    entries: list[Entry] = []
    for path in files:
        name = path.relative_to(run_dir).as_posix()
        if path.is_symlink():
            link = os.path.relpath(os.path.realpath(path), os.path.realpath(path.parent))
            entries.append(Entry(path=name, link=link))
            _add(archive, f"{root}/{FOLDER}/{name}", link=link)
            continue
        with tempfile.TemporaryFile() as copy:
            entry = _redacted_copy(path, name, redactor, copy)
            entries.append(entry)
            copy.seek(0)
            _add(archive, f"{root}/{FOLDER}/{name}", copy, entry.size)
    bundle = Bundle(ticket=ticket, redactor=redactor, entries=tuple(entries), left_out=tuple(left_out))
    manifest = (json.dumps(bundle.manifest(), indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape")
    _add(archive, f"{root}/{MANIFEST}", io.BytesIO(manifest), len(manifest))
    return bundle


def _walk(run_dir: Path) -> list[tuple[Path, str | None]]:
    """Returns everything in the run directory that is no folder of its own, sorted; for what is not the run's, why."""
    try:
        found = list(OwnFiles(run_dir, _read_plan(run_dir)).walk())
    except ValueError as error:
        raise BundleError(f"{run_dir / 'plan.json'}: {error}; {RUN_AGAIN}") from error
    except OSError as error:
        raise BundleError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return sorted(found, key=lambda item: item[0].relative_to(run_dir).parts)


def _refuse_links(run_dir: Path, own: set[Path]) -> None:
    root = os.path.realpath(run_dir)
    away = [
        f"{path.relative_to(run_dir)} -> {os.readlink(path)}"
        for path in sorted(own)
        if path.is_symlink() and os.path.commonpath([root, os.path.realpath(path)]) != root
    ]
    if away:
        raise BundleError(
            f"{run_dir}: symbolic links leave the directory, and what they point to is not the run's; remove them, "
            f"or put copies in their place: {'; '.join(away)}"
        )


def _reason_to_leave_out(run_dir: Path, path: Path, redactor: Redactor, own_places: set[Path]) -> str | None:
    if path.is_symlink():
        target = run_dir / os.path.relpath(os.path.realpath(path), os.path.realpath(run_dir))
        return None if target in own_places or not target.exists() else f"a link to what is {NOT_OF_THE_RUN}"
    if not stat.S_ISREG(path.lstat().st_mode):
        return "no plain file"
    if path.name.startswith(".tmp-"):
        return "a temporary file"
    if redactor.is_active and _is_binary(path):
        return "binary: it cannot be redacted"
    return None


def _is_binary(path: Path) -> bool:
    with _opened(path) as file:
        while piece := file.read(_PIECE):
            if b"\0" in piece:
                return True
    return False


def _opened(path: Path) -> IO[bytes]:
    """Opens a plain file, and no link that has taken its place.

    Raises:
        BundleError: It cannot be read.
    """
    try:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error


def _lines(path: Path) -> Iterator[str]:
    """Yields lines with their ends, of bounded length; other bytes than UTF-8 survive."""
    with _opened(path) as file:
        while line := file.readline(_PIECE):
            yield line.decode("utf-8", "surrogateescape")


def _redacted_copy(path: Path, name: str, redactor: Redactor, copy: IO[bytes]) -> Entry:
    digest, size = hashlib.sha256(), 0
    total = dict.fromkeys(KINDS, 0)
    samples: list[tuple[int, str]] = []

    def put(data: bytes) -> None:
        nonlocal size
        copy.write(data)
        digest.update(data)
        size += len(data)

    if redactor.is_active:
        for number, line in enumerate(_lines(path), 1):
            text, counts = redactor.redact(line)
            put(text.encode("utf-8", "surrogateescape"))
            for kind, count in counts.items():
                total[kind] += count
            if any(counts.values()) and len(samples) < _SAMPLES:
                samples.append((number, shortened(text.strip(), _SAMPLE_WIDTH)))
    else:
        with _opened(path) as file:
            while piece := file.read(_PIECE):
                put(piece)
    return Entry(path=name, size=size, sha256=digest.hexdigest(), redactions=total, samples=tuple(samples))


def _add(
    archive: tarfile.TarFile | None, name: str, content: IO[bytes] | None = None, size: int = 0, link: str | None = None
) -> None:
    if archive is None:
        return
    member = tarfile.TarInfo(name)
    member.mode, member.size = 0o644, size
    if link is not None:
        member.type, member.linkname = tarfile.SYMTYPE, link
    archive.addfile(member, content)
