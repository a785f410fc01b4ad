"""Bad values and the tensor that holds them are kept, bounded, and the host is asked for them only in a bad step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aorta.instrumentation.layer_numerics import capture, stats
from aorta.instrumentation.layer_numerics.session import Session
from aorta.instrumentation.layer_numerics.spec import Follow, Spec, Watch
from aorta.instrumentation.layer_numerics.stats import first_bad_positions

NAN, INF = float("nan"), float("inf")
BOTH = frozenset({"bad_values", "dump_tensor"})


class Run:
    """A model of two layers that hand on what they get; each call is a step."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.folder = folder
        self.told: list[str] = []
        defaults: dict[str, Any] = {"watch": (Watch(tensors=("input",)),), "diagnostics": BOTH}
        self.session = Session(
            Spec(folder=str(folder), step_end="forward", **{**defaults, **spec}), 0, self.told.append
        )
        self.model = nn.Sequential(nn.Identity(), nn.Identity())

    def close(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Ends the run; returns its rows and its summary."""
        self.session.close()
        lines = (self.folder / "layers_rank0.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines], json.loads((self.folder / "summary_rank0.json").read_text())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs, and takes their hooks away after the test."""
    started: list[Run] = []

    def go(**spec: Any) -> Run:
        started.append(Run(tmp_path, **spec))
        return started[-1]

    yield go
    for run in started:
        run.session.close()


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (torch.float64, ["0x7ff8000000000000", "0xfff0000000000000"]),
        (torch.float32, ["0x7fc00000", "0xff800000"]),
        (torch.float16, ["0x7e00", "0xfc00"]),
        (torch.bfloat16, ["0x7fc0", "0xff80"]),
        (torch.float8_e5m2, ["0x7f", "0xfc"]),
    ],
)
def test_bad_values_have_an_index_and_their_bits(
    start: Callable[..., Run], dtype: torch.dtype, bits: list[str]
) -> None:
    """Of each type of number; rows without a bad value have none."""
    run = start()
    run.model(torch.ones(2, 3).to(dtype))
    bad = torch.ones(2, 3).to(dtype)
    # What bits a NaN gets by a conversion is the processor's choice.
    raw_B = bad.view(torch.uint8).view(6, -1)
    for position, one in zip((2, 4), bits, strict=True):
        raw_B[position] = torch.tensor(list(bytes.fromhex(one[2:]))[::-1], dtype=torch.uint8)
    run.model(bad)
    rows, _ = run.close()
    assert [row.get("bad_values") for row in rows[:2]] == [None, None]
    assert rows[2]["bad_values"] == rows[3]["bad_values"] == [
        {"index": [0, 2], "value": "nan", "bits": bits[0]}, {"index": [1, 1], "value": "-inf", "bits": bits[1]},
    ]  # fmt: skip


def test_few_bad_values_are_kept(start: Callable[..., Run]) -> None:
    """The first ones, however many there are."""
    run = start()
    run.model(torch.full((5, 5), INF))
    rows, _ = run.close()
    assert [one["index"] for one in rows[0]["bad_values"]] == [
        [0, 0], [0, 1], [0, 2], [0, 3], [0, 4], [1, 0], [1, 1], [1, 2],
    ]  # fmt: skip


def test_values_out_of_bounds_are_bad(start: Callable[..., Run]) -> None:
    """Whole numbers too."""

    class Named(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return ids

    run = start(watch=(), follow=(Follow(tensor="ids", bounds=(0, 9)),))
    run.model = Named()
    run.model(ids=torch.tensor([[3, -1], [10, 9]]))
    rows, summary = run.close()
    assert rows[0]["bad_values"] == [
        {"index": [0, 1], "value": -1, "bits": "0xffffffffffffffff"},
        {"index": [1, 0], "value": 10, "bits": "0x000000000000000a"},
    ]
    assert [one["channel"] for one in summary["tensors"]] == ["ids@input"]


def test_the_first_of_several_tensors_counts(start: Callable[..., Run]) -> None:
    """Those of one step are joined; the one that is bad may have another shape."""
    run = start(watch=(Watch(tensors=("input",)),))
    pair = nn.Bilinear(2, 2, 1)
    pair(torch.ones(1, 2), torch.tensor([[1.0, NAN]]))
    rows, _ = run.close()
    assert [one["index"] for one in rows[0]["bad_values"]] == [[0, 1]]


def test_positions_are_found_across_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large tensor is looked at in pieces."""
    monkeypatch.setattr(stats, "_PIECE", 3)
    values = torch.zeros(10)
    values[[1, 2, 5, 9]] = NAN
    assert first_bad_positions(values, 3).tolist() == [1, 2, 5]
    assert first_bad_positions(values, 6).tolist() == [1, 2, 5, 9, -1, -1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float8_e5m2])
def test_the_first_bad_tensor_is_saved(start: Callable[..., Run], dtype: torch.dtype) -> None:
    """Bit for bit as it was, whatever became of it within the step; the summary names the file."""
    run = start()
    run.model(torch.ones(2, 2))
    bad = torch.tensor([[1.5, NAN, 3.0], [0.5, -INF, 2.0]]).to(dtype).T
    before = bad.clone()
    run.model(bad)
    bad.zero_()
    run.model(torch.ones(7, 2))
    _, summary = run.close()
    about = {"step": 1, "layer": "0", "channel": "input"}
    file = {"file": "tensor_rank0_step1.pt", "shape": [3, 2], "dtype": str(dtype).removeprefix("torch.")}
    assert summary["tensors"] == [{**file, **about}]
    saved = torch.load(run.folder / "tensor_rank0_step1.pt")
    tensor = saved.pop("tensor")
    assert (saved, tensor.dtype, run.told) == (about, dtype, [])
    assert torch.equal(tensor.contiguous().view(torch.uint8), before.contiguous().view(torch.uint8))


def test_the_first_bad_layer_is_saved_and_not_a_later_one(start: Callable[..., Run]) -> None:
    """In the order of execution, clean ones before it left out; each is saved once, and few are."""
    run = start()
    run.model = nn.Sequential(nn.Identity(), *(nn.Threshold(0.5, NAN) for _ in range(6)), nn.Identity())
    for _ in range(8):
        run.model(torch.zeros(2))
    _, summary = run.close()
    assert [(one["step"], one["layer"]) for one in summary["tensors"]] == [(0, "2"), (1, "3"), (2, "4"), (3, "5")]
    assert len(summary["tensors"]) == len(list(run.folder.glob("*.pt"))) == capture.MOST_TENSORS


def test_a_tensor_that_is_too_large_is_not_saved(start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is warned about once, if it is bad; one that is not too large is saved in its place."""
    monkeypatch.setattr(capture, "MOST_BYTES", 16)
    run = start()
    pool = nn.Sequential(nn.MaxPool1d(2), nn.Identity())
    pool(torch.ones(1, 8))
    assert run.told == []
    pool(torch.full((1, 8), INF))
    pool(torch.full((1, 8), INF))
    _, summary = run.close()
    assert [(one["layer"], one["shape"]) for one in summary["tensors"]] == [("1", [1, 4])]
    assert len(run.told) == 1 and run.told[0].startswith("dump_tensor: input of 0 has 0 MiB in step 1, more than")


def test_inference_mode_and_training_may_alternate(start: Callable[..., Run]) -> None:
    """What is kept between steps can be written to in either."""
    run = start()
    for bad in (1.0, NAN):
        with torch.inference_mode():
            run.model(torch.ones(2))
        run.model(torch.full((3,), bad, requires_grad=True))
    _, summary = run.close()
    assert (run.told, [one["step"] for one in summary["tensors"]]) == ([], [3])


def test_a_step_without_a_bad_value_reads_nothing_more(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read, as without the diagnostics; a bad step reads what it has kept."""
    run = start()
    reads: list[str] = []
    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "cpu", "numpy"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda *args, name=name, original=original: reads.append(name) or original(*args)
        )
    for _ in range(3):
        run.model(torch.ones(2))
    assert reads == ["tolist", "tolist"]
    run.model(torch.full((2,), NAN))
    assert reads == ["tolist"] * 3
    run.model(torch.ones(2))
    assert len(reads) > 4


def test_a_full_disk_does_not_end_the_run(start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are written all the same."""

    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    run = start()
    run.model(torch.full((2,), NAN))
    rows, summary = run.close()
    assert len(rows) == 2 and summary["tensors"] == []
    assert summary["warnings"] == ["save_tensor: OSError: [Errno 28] No space left on device"]
