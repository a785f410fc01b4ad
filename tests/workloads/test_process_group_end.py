"""What is left of a process group when a trial has been cleaned up."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from pathlib import Path
from {module} import {name}

def threads():
    return sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))

before = threads()
workload = {name}({config!r})
workload.setup()
workload.run()
during = threads()
workload.cleanup()
left = threads()
for name in before:
    left.remove(name)
print("gloo" in " ".join(during), [name for name in left if "gloo" in name or "store" in name])
"""

SIZES = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "ffn_size": 16, "vocab_size": 32}
SMALL = {"device": "cpu", "dtype": "float32", "batch_size": 1, "seq_len": 4, "steps": 1, "warmup_steps": 0}


@pytest.mark.parametrize(
    ("module", "name", "config"),
    [
        ("aorta.workloads.training", "TrainingWorkload", {**SMALL, "parallelism": "fsdp", "model": SIZES}),
        ("aorta.workloads.training", "TrainingWorkload", {**SMALL, "parallelism": "ddp", "model": SIZES}),
        ("aorta.workloads.llm_determinism", "LlmDeterminismWorkload", {**SMALL, **SIZES}),
    ],
    ids=["fsdp", "ddp", "llm_determinism"],
)
def test_a_group_that_was_left_has_no_threads(module: str, name: str, config: dict[str, object]) -> None:
    """They would work on while the interpreter ends, and abort the process now and then: a clean trial in error."""
    program = PROGRAM.format(module=module, name=name, config=config)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "True []"), done.stderr
