"""Kills a sweep at random moments in every way, starts it again by the same command, and checks what is left.

``tests/e2e/test_chaos.py`` runs the short form and ``benchmarks/chaos.py`` the long one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from aorta.dag.lock import read_owner
from aorta.instrumentation.snapshot import NO_TORCH_VARIABLE
from aorta.run.process import kill_all
from tests.e2e.conftest import PLUGIN, REPOSITORY

MARK = "KNOWN_CHAOS"
DEADLINE_SEC = 120.0
CELLS = {"passes": "pass", "fails": "fail", "raises": "raise", "mixed": "third"}
TRIALS = 6
COUNTS = {
    "passes": {"pass": 6, "fail": 0, "error": 0},
    "fails": {"pass": 0, "fail": 6, "error": 0},
    "raises": {"pass": 0, "fail": 0, "error": 6},
    "mixed": {"pass": 2, "fail": 2, "error": 2},
}


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Polls until ``condition`` gives something true, and returns that; fails after the deadline."""
    deadline = time.monotonic() + DEADLINE_SEC
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {DEADLINE_SEC:g} s for {what}"
        time.sleep(0.01)
    return found


def processes(mark: str) -> dict[int, str]:
    """The living processes that carry the mark, with their command lines."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            folder = Path("/proc", name)
            if f"{MARK}={mark}".encode() in folder.joinpath("environ").read_bytes().split(b"\0"):
                state = folder.joinpath("stat").read_bytes().rpartition(b")")[2].split()[0]
                if state not in (b"Z", b"X"):
                    found[int(name)] = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def parent_of(pid: int) -> int | None:
    """The parent of a process, or None if that has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


@dataclass
class Tally:
    """What a chaos run did."""

    kills: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    starts: int = 0
    takeovers: int = 0
    waits: int = 0


class Chaos:
    """One folder in which sweeps of the same recipe are killed and resumed.

    Args:
        folder: An empty folder.
        seed: Decides every kill and every moment.
        seconds: How long each trial takes.
    """

    def __init__(self, folder: Path, seed: int, seconds: float = 0.3) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.mark = f"{seed}-{os.getpid()}-{time.monotonic_ns()}"
        self.log = folder / "runs.log"
        self.tally = Tally()
        # Parents of what was killed last.
        self.witnesses: list[int] = []
        self.run_dir = folder / "undisturbed"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(PLUGIN),
            "AORTA_LOCK_DIR": str(folder / "locks"),
            NO_TORCH_VARIABLE: "1",
            "KNOWN_LOG": str(self.log),
            "KNOWN_SECONDS": str(seconds),
            MARK: self.mark,
        }
        content = {
            "schema_version": 1,
            "workload": "known",
            "trials": TRIALS,
            "steps": 1,
            "confound": {"baseline_cell": "passes"},
            "cells": [
                {"name": name, "mitigations": ["none"], "environment": "local", "workload_config": {"end": end}}
                for name, end in CELLS.items()
            ],
        }
        (folder / "recipe.yaml").write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")

    # One sweep.

    def command(self, kind: str) -> list[str]:
        """The same command each time: plain Snakemake or ``aorta sweep run``."""
        name = self.run_dir.name
        if kind == "snakemake":
            snakefile = str(REPOSITORY / "Snakefile")
            return [
                sys.executable, "-m", "snakemake", "--snakefile", snakefile,
                "--config", "recipe=recipe.yaml", f"run_dir={name}",
            ]  # fmt: skip
        program = "from aorta.cli import main; main(prog_name='aorta')"
        return [sys.executable, "-c", program, "sweep", "run", "--recipe", "recipe.yaml", "--run-dir", name]

    @contextlib.contextmanager
    def started(self, kind: str) -> Iterator[subprocess.Popen[bytes]]:
        """Starts a sweep in a session of its own; what it says goes to a file."""
        self.tally.starts += 1
        with (self.folder / f"said-{self.tally.starts:04}.txt").open("wb") as said:
            process = subprocess.Popen(
                self.command(kind),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def finish(self) -> str:
        """Runs the sweep to its end without a kill; returns what it said."""
        with self.started("aorta") as process:
            code = process.wait(timeout=DEADLINE_SEC)
        said = (self.folder / f"said-{self.tally.starts:04}.txt").read_text("utf-8", "replace")
        assert code == 0, said
        return said

    def runs(self) -> list[dict[str, Any]]:
        """Every start of a trial's work so far, in order."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text("utf-8").splitlines()]

    def records(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The whole records of the present run."""
        found = {}
        for path in self.run_dir.glob("cells/*/known/trial_*.json"):
            with contextlib.suppress(ValueError, OSError):
                record = json.loads(path.read_text("utf-8"))
                found[record["cell"], record["trial"]] = record
        return found

    # Kills.

    def disturb(self, kills: int) -> None:
        """Kills and resumes until so many kills are done, over as many whole runs as that takes."""
        kinds = list(self.ways)
        # Each kind comes up before any comes again.
        queue: list[str] = []
        while sum(self.tally.kills.values()) < kills:
            if not queue:
                queue = self.random.sample(kinds, len(kinds))
            if self.run_once(queue[-1]):
                self.check_end()
                self.new_round()
            else:
                queue.pop()
        self.finish()
        self.check_end()

    def new_round(self) -> None:
        self.tally.rounds += 1
        self.run_dir = self.folder / f"round-{self.tally.rounds}"

    def run_once(self, way: str) -> bool:
        """Starts the sweep and kills it at a random moment; returns True if it had ended by itself before."""
        before = len(self.runs())
        with self.started(self.random.choice(["snakemake", "aorta"])) as process:
            if self.random.random() < 0.2 and way not in ("supervisor", "worker"):
                moment = time.monotonic() + self.random.uniform(0, 3)  # while it starts up
            else:
                wait_until(lambda: len(self.runs()) > before or process.poll() is not None, "a trial to start")
                moment = time.monotonic() + self.random.uniform(0, 0.7)
            while time.monotonic() < moment and process.poll() is None:
                time.sleep(0.005)
            if process.poll() is not None:
                said = (self.folder / f"said-{self.tally.starts:04}.txt").read_text("utf-8", "replace")
                assert process.returncode == 0, said
                return self.is_whole()
            self.tally.kills[way] += 1
            self.ways[way](self, process)
            if way in ("supervisor", "worker"):
                # The sweep lives on with one trial lost or spoilt.
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=DEADLINE_SEC)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{way}: lives on.\n{self.scene()}") from None
        self.after(way)
        return False

    def scene(self) -> str:
        """What a person needs to see why a sweep does not end."""
        said = (self.folder / f"said-{self.tally.starts:04}.txt").read_text("utf-8", "replace")
        lines = [f"{pid} {line}" for pid, line in processes(self.mark).items()]
        lines += [f"{path}: {path.read_text()}" for path in self.run_dir.glob(".aorta/claims/*/*")]
        return "\n".join([*lines, *said.splitlines()[-30:]])

    def is_whole(self) -> bool:
        return len(self.records()) == TRIALS * len(CELLS)

    def _signal_main(signum: int) -> Callable[[Chaos, subprocess.Popen[bytes]], None]:  # type: ignore[misc]
        return lambda self, process: process.send_signal(signum)

    def _signal_group(signum: int) -> Callable[[Chaos, subprocess.Popen[bytes]], None]:  # type: ignore[misc]
        return lambda self, process: os.killpg(process.pid, signum)

    def _kill_one(word: str) -> Callable[[Chaos, subprocess.Popen[bytes]], None]:  # type: ignore[misc]
        def kill(self: Chaos, process: subprocess.Popen[bytes]) -> None:
            chosen = [pid for pid, line in processes(self.mark).items() if word in line]
            victims = self.random.sample(chosen, min(1, len(chosen)))
            self.witnesses = [parent for pid in victims if (parent := parent_of(pid)) is not None]
            kill_all(victims)

        return kill

    def _cut_power(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + DEADLINE_SEC
        while living := processes(self.mark):
            assert time.monotonic() < deadline
            kill_all(living)
        process.wait()
        self._damage()

    ways: ClassVar[dict[str, Callable[[Chaos, subprocess.Popen[bytes]], None]]] = {
        "main SIGINT": _signal_main(signal.SIGINT),
        "main SIGTERM": _signal_main(signal.SIGTERM),
        "main SIGKILL": _signal_main(signal.SIGKILL),
        "group SIGINT": _signal_group(signal.SIGINT),
        "group SIGTERM": _signal_group(signal.SIGTERM),
        "group SIGHUP": _signal_group(signal.SIGHUP),
        "group SIGKILL": _signal_group(signal.SIGKILL),
        "snakemake": _kill_one(" --snakefile "),
        "supervisor": _kill_one(" -I -S "),
        "worker": _kill_one("aorta.run.worker"),
        "power": _cut_power,
    }

    def _damage(self) -> None:
        """Leaves what a power cut, or a disk that lies about its flushes, leaves."""
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        host = os.uname().nodename
        for folder in {path.parent for path in self.run_dir.glob("cells/*/known/trial_*.json")} | {self.folder}:
            if folder != self.folder:
                (folder / f".tmp-{host}-{dead.pid}-0123456789ab").write_text("half a rec")
        records = sorted(self.run_dir.glob("cells/*/known/trial_*.json"))
        for path in self.random.sample(records, min(2, len(records))):
            data = path.read_bytes()
            cut = self.random.choice([None, 0, self.random.randrange(len(data) or 1)])
            if cut is None:
                path.unlink()
            else:
                path.write_bytes(data[:cut])
        for path in self.run_dir.glob("matrix.json"):
            path.write_bytes(path.read_bytes()[: self.random.randrange(50)])
        if records and self.random.random() < 0.5:
            cells = sorted(self.run_dir.glob("cells/*/cell.json"))
            for path in self.random.choice(
                [[self.run_dir / "plan.json"], [self.run_dir / "plan.json", cells[0]], cells]
            ):
                path.write_bytes(path.read_bytes()[: self.random.randrange(50)])
        for name in ("0.input.lock", "0.output.lock"):
            locks = self.folder / ".snakemake" / "locks"
            locks.mkdir(parents=True, exist_ok=True)
            (locks / name).write_text(f"{self.run_dir.name}/matrix.json\n")
        for path in self.folder.glob(".snakemake/metadata/*"):
            if path.is_file() and self.random.random() < 0.3:
                path.write_bytes(path.read_bytes()[:7])

    def after(self, way: str) -> None:
        """A killed worker is a result, and says so; whoever wants the trial again deletes the file."""
        if way != "worker":
            return
        # The worker may have been that of an earlier start's orphan, which outlives this start.
        wait_until(lambda: not set(self.witnesses) & set(processes(self.mark)), "the worker's supervisor to record it")
        for path in self.run_dir.glob("cells/*/known/trial_*.json"):
            with contextlib.suppress(ValueError, OSError):
                record = json.loads(path.read_text("utf-8"))
                if record["error"] and record["error"]["type"] == "signal":
                    assert record["error"]["signal"] == "SIGKILL"
                    path.unlink()

    # What must hold.

    def outcome(self) -> dict[str, Any]:
        """All of the matrix that does not depend on time: verdicts, counts, rates, fingerprints."""
        matrix = json.loads((self.run_dir / "matrix.json").read_text("utf-8"))
        of_cell = (
            "name", "fingerprint", "trials", "trials_present", "missing_trials", "verdict_counts", "exit_status_counts",
            "failure_rate", "event_rate", "event_rate_ci95", "error_rate", "did_not_run", "trial_paths",
            "failure_hints", "error_summary", "p_value_vs_baseline", "resolved_env_vars",
        )  # fmt: skip
        verdicts = {
            f"{cell} {trial}": (record["verdict"], record["exit_status"], record["fingerprint"])
            for (cell, trial), record in sorted(self.records().items())
        }
        return {
            **{name: matrix[name] for name in ("complete", "plan_key", "trials_expected", "trials_present")},
            "cells": [{name: cell[name] for name in of_cell} for cell in matrix["cells"]],
            "verdicts": verdicts,
        }

    def check_end(self) -> None:
        """After a run has ended: no trial ran twice once recorded, or beside itself, and nothing is left behind."""
        # The last start may have had nothing to do for a killed one's leftovers.
        self.finish()
        assert [run for run in self.runs() if run["recorded"] or run["raced"]] == []
        wait_until(lambda: not processes(self.mark), "every process to end")
        left = list(self.folder.rglob(".tmp-*"))
        assert left == []
        assert [path for path in self.run_dir.glob(".aorta/claims/*/*") if path.is_file()] == []
        assert read_owner(self.run_dir / ".aorta" / "lock") is None
        assert [path for path in (self.folder / "locks").glob("*") if path.read_bytes().strip()] == []
        matrix = json.loads((self.run_dir / "matrix.json").read_text("utf-8"))
        assert {cell["name"]: cell["verdict_counts"] for cell in matrix["cells"]} == COUNTS

    def heard(self, words: str) -> int:
        """How often the sweeps said something."""
        texts = (path.read_text("utf-8", "replace") for path in self.folder.glob("said-*.txt"))
        return sum(text.count(words) for text in texts)
