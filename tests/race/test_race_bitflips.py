"""Single flipped bits, drawn at random in every kind of buffer of every mode: all are found, at their place.

``AORTA_RACE_DRAWS=100 pytest tests/race/test_race_bitflips.py`` makes 100 draws for each buffer kind and configuration;
without the variable there are 20.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from race_runs import WORLD_SIZE, run_trials, tiny

from aorta.race.buffers import BUFFER_KINDS, buffer_names
from aorta.race.config import ReproducerConfig
from aorta.workloads.config import load_config

DRAWS = int(os.environ.get("AORTA_RACE_DRAWS", "20"))
# A rank keeps 32 records in full, so a trial has fewer faults than that.
_PER_TRIAL = 20
_SHARED = {"compute_type": "transformer", "shared_layer_weights": True, "real_backward": True}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "default-bf16": tiny("default"),
    "default-fp32-double-buffered-prefetch": tiny("default", dtype="fp32", reuse_buffers=False, h2d_prefetch=True),
    "default-fp16-one-stream-adamw": tiny("default", dtype="fp16", same_stream_mode=True, optimizer="adamw"),
    "default-shared-layers": tiny("default", **_SHARED),
    "ddp-bulk-bf16-sgd": tiny("ddp", optimizer="sgd"),
    "ddp-bulk-double-buffered-fp16": tiny("ddp", dtype="fp16", reuse_buffers=False),
    "ddp-bucketed-fp32": tiny("ddp", ddp_bucketed=True, dtype="fp32"),
    "ddp-bucketed-double-buffered-shared-layers": tiny("ddp", ddp_bucketed=True, reuse_buffers=False, **_SHARED),
    "fsdp-bare-bf16": tiny("fsdp", simulate_compute=False),
    "fsdp-gemm-fp16-adamw": tiny("fsdp", dtype="fp16", optimizer="adamw"),
    "fsdp-gemm-fp32-real-backward-shampoo": tiny("fsdp", dtype="fp32", real_backward=True, optimizer="shampoo"),
    "fsdp-shared-layers": tiny("fsdp", **_SHARED),
}


def settings_of(config: dict[str, Any]) -> ReproducerConfig:
    return load_config(ReproducerConfig, config, "race")


def kind_of(buffer: str) -> str:
    """The name of a buffer's kind: that of the buffer with the layer's number left open."""
    head, _, tail = buffer.rpartition(".")
    return f"{head.rstrip('0123456789')}{{i}}.{tail}" if head else tail


def drawn_trials(config: dict[str, Any], draw: random.Random) -> list[dict[str, Any]]:
    """Trials that together make ``DRAWS`` draws of (buffer, iteration, rank) for each buffer kind.

    Element and bit are left to the injector, which draws them from the seed and reports what it struck.
    """
    kinds: dict[str, list[str]] = {}
    for name in buffer_names(settings_of(config)):
        kinds.setdefault(kind_of(name), []).append(name)
    trials = []
    for names in kinds.values():
        for start in range(0, DRAWS, _PER_TRIAL):
            count = min(_PER_TRIAL, DRAWS - start)
            steps = count // 2 + 2
            places = draw.sample([(step, rank) for step in range(steps) for rank in range(WORLD_SIZE)], count)
            faults = [
                {
                    "kind": "bitflip",
                    "buffer": draw.choice(names),
                    "rank": rank,
                    "step": step,
                    "seed": draw.getrandbits(31),
                }
                for step, rank in places
            ]
            trials.append(config | {"verify_iterations": steps, "stop_on_first_corruption": False, "inject": faults})
    return trials


def found_of(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What the corruption records say, with the follow-up of a wrong gradient in the optimiser left out."""
    records = result["failure_details"]
    reduced = {(r["iteration"], r["rank"]) for r in records if not r["buffer"].endswith("optimizer_param")}
    return sorted(
        (
            r["iteration"],
            r["rank"],
            r["buffer"],
            r["count"],
            r["first_position"],
            r["expected"]["bits"],
            r["found"]["bits"],
        )
        for r in records
        if not (r["buffer"].endswith("optimizer_param") and (r["iteration"], r["rank"]) in reduced)
    )


def planted_of(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What the injector says that it struck, in the same form."""
    strikes = [s for planned in result["metrics"]["injected"]["planned"] for s in planned["strikes"]]
    return sorted((s["step"], s["rank"], s["buffer"], 1, s["element"], s["before"], s["after"]) for s in strikes)


@pytest.fixture(scope="module")
def results() -> dict[str, list[tuple[dict[str, Any], list[dict[str, Any]]]]]:
    """Each configuration's trials with both ranks' results, all run by one pair of processes."""
    drawn = {name: drawn_trials(config, random.Random(name)) for name, config in CONFIGURATIONS.items()}
    ran = iter(run_trials([trial for trials in drawn.values() for trial in trials], timeout=1800))
    return {name: [(trial, next(ran)) for trial in trials] for name, trials in drawn.items()}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_flipped_bit_is_found_at_its_place(
    name: str, results: dict[str, list[tuple[dict[str, Any], list[dict[str, Any]]]]]
) -> None:
    """Each drawn flip gives one record with the right iteration, rank, buffer, position and both bit patterns."""
    for trial, of_rank in results[name]:
        for result in of_rank:
            planted = planted_of(result)
            assert len(planted) == len(trial["inject"])
            assert planted == found_of(result)
            assert not result["passed"]


def test_the_configurations_have_every_buffer_kind_of_every_mode() -> None:
    """Nothing that is verified is left out of the draws."""
    drawn = {(c["mode"], kind_of(name)) for c in CONFIGURATIONS.values() for name in buffer_names(settings_of(c))}
    assert drawn == {(mode, kind.name) for kind in BUFFER_KINDS for mode in kind.modes}
