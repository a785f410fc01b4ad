"""Files that take their place whole or not at all, with room that is reserved before there is a text."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from aorta._jsonio import NotRegularError, PendingFile, naming, read_regular, told


def test_what_is_committed_is_the_text_alone(tmp_path: Path) -> None:
    """Nothing of the reserved bytes stays, and no temporary file."""
    path = tmp_path / "record"
    pending = PendingFile(path, 65536)
    assert not path.exists()
    pending.commit("{}\n")
    pending.discard()
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("record", "{}\n")]


def test_a_file_that_was_taken_for_a_dead_ones_is_written_again(tmp_path: Path) -> None:
    """Who cleans up on another host cannot see this process."""
    pending = PendingFile(tmp_path / "record", 65536)
    (temporary,) = tmp_path.iterdir()
    temporary.unlink()
    pending.commit("{}\n")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("record", "{}\n")]


def test_without_room_nothing_is_left(tmp_path: Path) -> None:
    """The error names the file that was meant."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError) as caught:
            PendingFile(tmp_path / "record", 65536)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "record"))
    assert list(tmp_path.iterdir()) == []


def test_an_error_without_a_name_gets_one(tmp_path: Path) -> None:
    """A person reads the path and what helps, not None."""
    with pytest.raises(OSError) as caught, naming(tmp_path / "lock"):
        raise OSError(errno.ENOSPC, "No space left on device")
    text = told(caught.value, "elsewhere")
    assert text == f"{tmp_path}/lock: No space left on device; make room, and run the same command again"


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """It is named for what it is."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotRegularError, match="is a named pipe, not a regular file"):
        read_regular(tmp_path / "pipe")
