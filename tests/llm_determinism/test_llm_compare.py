"""Comparing two replays: what differs, where first, and what is written down of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aorta.llm_determinism.capture import Capture
from aorta.llm_determinism.compare import Divergence, Place, Replay, divergences

PLACES = (
    Place(block=0, direction="forward", tensor="blocks.0.input", role="block_pre"),
    Place(block=0, direction="forward", tensor="blocks.0.output", role="block_post"),
    Place(block=None, direction="forward", tensor="logits", role="output"),
    Place(block=None, direction="forward", tensor="loss", role="loss"),
    Place(block=0, direction="backward", tensor="blocks.0.output.grad", role="block_post"),
    Place(block=0, direction="backward", tensor="blocks.0.input.grad", role="block_pre"),
    Place(block=0, direction="backward", tensor="blocks.0.ffn.up.weight.grad", role="parameter"),
    Place(block=0, direction="update", tensor="blocks.0.ffn.up.weight", role="parameter"),
)


def replay(**changed: int) -> Replay:
    """A replay whose checksums are 10, 11, ... and 20, 21, ...; ``o3=5`` sets the fourth ordered one to 5."""
    plain, ordered = list(range(10, 18)), list(range(20, 28))
    for name, value in changed.items():
        (ordered if name[0] == "o" else plain)[int(name[1:])] = value
    return Replay(places=PLACES, plain=tuple(plain), ordered=tuple(ordered))


def differing(first: Replay, second: Replay, **changes: Any) -> list[Divergence]:
    settings: dict[str, Any] = {"step": 0, "runs": ("r1", "r2"), "rank": 0, **changes}
    return list(divergences(first, second, **settings))


def test_equal_replays_do_not_diverge() -> None:
    """The same checksums, no divergence, the same digest."""
    assert differing(replay(), replay()) == []
    assert replay().digest() == replay().digest() != replay(o7=0).digest()


def test_divergences_come_in_the_order_of_the_step() -> None:
    """The first one is where the fault came in."""
    found = differing(replay(), replay(o5=0, o1=0, p1=0, o7=0))
    assert [d.place.tensor for d in found] == ["blocks.0.output", "blocks.0.input.grad", "blocks.0.ffn.up.weight"]
    assert [d.seen_by_plain_sum for d in found] == [True, False, False]


def test_a_plain_sum_alone_is_no_divergence() -> None:
    """The verdict rests on the position-sensitive checksum, which differs whenever the plain sum does."""
    assert differing(replay(), replay(p1=0)) == []


def test_replays_of_different_tensors_cannot_be_compared() -> None:
    """A run that skipped a block is an error, not an agreement."""
    short = Replay(places=PLACES[1:], plain=(0,) * 7, ordered=(0,) * 7)
    with pytest.raises(RuntimeError, match="r1 recorded 8 tensors and r2 7"):
        differing(replay(), short)


def test_earliest_divergence_sorts_first() -> None:
    """Step before pair, pair within a step before that across steps, then the tensor, then the rank."""
    across = ("r1 of step 0", "r1")
    expected = [
        differing(replay(), replay(o3=0), rank=0)[0],
        differing(replay(), replay(o3=0), rank=1)[0],
        differing(replay(), replay(o0=0), step=1, rank=1)[0],
        differing(replay(), replay(o1=0), step=1, rank=0)[0],
        differing(replay(), replay(o0=0), step=1, rank=0, runs=across)[0],
    ]
    shuffled = [expected[index] for index in (4, 2, 0, 3, 1)]
    assert sorted(shuffled, key=lambda d: d.sort_key) == expected


def test_a_reason_names_everything() -> None:
    """One line says step, rank, block, direction, tensor and both checksums."""
    (found,) = differing(replay(), replay(o4=-1), step=3, rank=1)
    assert found.reason() == (
        "step 3, rank 1: block 0, backward, blocks.0.output.grad: "
        "checksum 0000000000000018 in r1, ffffffffffffffff in r2"
    )


def test_blocks_count_when_all_four_sides_were_seen() -> None:
    """A block without its gradients was not checked."""
    forward_only = Replay(places=PLACES[:4], plain=(0,) * 4, ordered=(0,) * 4)
    assert (replay().blocks_checked(), forward_only.blocks_checked()) == (1, 0)


def test_a_capture_line_holds_every_checksum(tmp_path: Path) -> None:
    """A line is on disk as soon as it is written, under the names of the documentation."""
    capture = Capture(str(tmp_path / "c{trial}"), rank=7, trial=2)
    capture.write(replay(), step=0, run="r1")
    assert capture.path == tmp_path / "c2" / "rank007.jsonl"
    line = json.loads(capture.path.read_text())
    capture.close()
    plain = {
        "block_pre": [10],
        "block_post": [11],
        "output_bits": 12,
        "loss_bits": 13,
        "block_post_grad": [14],
        "block_pre_grad": [15],
        "parameters_before": {},
        "gradients": {"blocks.0.ffn.up.weight": 16},
        "parameters": {"blocks.0.ffn.up.weight": 17},
    }

    def ten_more(value: Any) -> Any:
        if isinstance(value, list):
            return [ten_more(item) for item in value]
        return {k: ten_more(v) for k, v in value.items()} if isinstance(value, dict) else value + 10

    ordered = {f"{name}_ordered": ten_more(value) for name, value in plain.items()}
    assert line == {"rank": 7, "trial": 2, "step": 0, "run": "r1", **plain, **ordered}
