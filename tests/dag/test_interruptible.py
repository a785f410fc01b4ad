"""How Snakemake takes an interrupt under ``aorta sweep run``, with a stand-in for Snakemake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

STAND_IN = """
import os, signal, sys, time

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Finalised:
    def __del__(self):
        interrupt()
        # Python looks for signals here.
        [None for _ in range(100)]

def lost():
    Finalised()
    time.sleep(20)

def main(arguments):
    try:
        {first}()
        print("not interrupted")
    except KeyboardInterrupt:
        {then}
    print("cleared up", arguments, flush=True)
    sys.exit(1)
"""


def run(folder: Path, then: str, first: str = "interrupt") -> tuple[int, str]:
    """Runs a Snakemake that is interrupted, with what it meets while it clears up; returns its end and words."""
    package = folder / "snakemake"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("cli.py").write_text(STAND_IN.format(first=first, then=then))
    done = subprocess.run(
        [sys.executable, "-m", "aorta.dag.interruptible", "--some", "words"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        # As the command starts it: blocked, until there is a handler.
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_an_interrupt_that_comes_twice_is_one(tmp_path: Path) -> None:
    """From the terminal and passed on: what Snakemake does about it is not interrupted."""
    assert run(tmp_path, "interrupt()") == (1, "cleared up ['--some', 'words']\n")


@pytest.mark.parametrize("then", ["time.sleep(1.2); interrupt()", "raise"])
def test_what_snakemake_does_not_handle_ends_it_without_a_traceback(tmp_path: Path, then: str) -> None:
    """A second Ctrl-C while it clears up, or one before it could: by the signal itself, as a shell expects."""
    assert run(tmp_path, then) == (-signal.SIGINT, "")


def test_an_interrupt_that_python_discards_comes_again(tmp_path: Path) -> None:
    """In a finaliser an exception only gets a message, and the sweep would go on."""
    assert run(tmp_path, "pass", "lost") == (1, "cleared up ['--some', 'words']\n")
