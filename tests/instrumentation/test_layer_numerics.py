"""Logging the numerics of layers: planted faults are found where they are, and the run is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aorta.instrumentation.layer_numerics import stats
from aorta.instrumentation.layer_numerics.session import Session
from aorta.instrumentation.layer_numerics.spec import DIAGNOSTICS, Follow, Scope, Spec, Watch
from aorta.instrumentation.layer_numerics.stats import FIELDS, first_bad_positions, measure, merge, to_host

ALL_TENSORS = Watch(tensors=("input", "output", "weight", "bias", "igrad", "grad"))


class Net(nn.Module):
    """Two linear layers; a fault can be planted between them, forward or backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)
        self.spoil: Callable[[torch.Tensor], torch.Tensor] | None = None

    def forward(self, x_BI: torch.Tensor) -> torch.Tensor:
        h_BH = self.act(self.first(x_BI))
        if self.spoil is not None:
            h_BH = self.spoil(h_BH)
        return self.second(h_BH)


class SpoilGradient(torch.autograd.Function):
    """Passes values on, and turns gradients into NaN."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """The identity."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """NaN, of the same shape."""
        return gradients[0] * float("nan")


class Logged:
    """A session over a training of a small net."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.warnings: list[str] = []
        self.session = Session(Spec(folder=str(folder), **spec), 0, self.warnings.append)
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def step(self, spoil: Callable[[torch.Tensor], torch.Tensor] | None = None) -> float:
        """One training step; returns the loss."""
        self.net.spoil = spoil
        self.optimizer.zero_grad()
        loss = self.net(torch.randn(3, 4)).square().mean()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def close(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Ends the session; returns its rows and its summary."""
        self.session.close()
        lines = (self.folder / "layers_rank0.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines], json.loads((self.folder / "summary_rank0.json").read_text())


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Callable[..., Logged]]:
    """Starts sessions, and takes their hooks away after the test."""
    started: list[Logged] = []

    def start(**spec: Any) -> Logged:
        started.append(Logged(tmp_path / "log", **spec))
        return started[-1]

    yield start
    for one in started:
        one.session.close()


def plant_nan(h_BH: torch.Tensor) -> torch.Tensor:
    """Turns one element into NaN."""
    h_BH = h_BH.clone()
    h_BH[1, 3] = float("nan")
    return h_BH


def test_a_clean_run_has_no_bad_value(logged: Callable[..., Logged]) -> None:
    """Each layer and channel has a row a step, in the order of execution, with its magnitudes."""
    run = logged(watch=(ALL_TENSORS,))
    for _ in range(3):
        run.step()
    rows, summary = run.close()
    assert (summary["first_bad"], summary["steps_measured"], run.warnings) == (None, 3, [])
    assert {row["step"] for row in rows} == {0, 1, 2}
    seen = [(row["layer"], row["channel"]) for row in rows if row["step"] == 1]
    assert seen[:4] == [("first", "input"), ("first", "weight"), ("first", "bias"), ("first", "output")]
    assert set(seen) == {
        *((layer, channel) for layer in ("first", "second") for channel in ALL_TENSORS.tensors),
        *(("act", channel) for channel in ("input", "output", "igrad")),
    } - {("first", "igrad")}  # its input is data and has no gradient
    weight = next(row for row in rows if (row["step"], row["layer"], row["channel"]) == (0, "first", "weight"))
    assert weight["finite_min"] < 0 < weight["finite_max"] <= weight["finite_abs_max"] <= 0.5


def test_a_planted_nan_is_found_where_it_came_in(logged: Callable[..., Logged]) -> None:
    """Step, layer, direction and kind; what came before is clean, what came after is not."""
    run = logged(watch=(ALL_TENSORS,))
    run.step()
    run.step(plant_nan)
    rows, summary = run.close()
    assert summary["first_bad"] == {
        "step": 1, "layer": "second", "channel": "input", "direction": "forward", "kind": "nan",
    }  # fmt: skip
    bad = {(row["layer"], row["channel"]): row["nan_count"] for row in rows if row["step"] == 1}
    assert (bad["act", "output"], bad["second", "input"], bad["second", "output"]) == (0, 1, 2)


def test_a_planted_nan_of_the_backward_pass_is_found(logged: Callable[..., Logged]) -> None:
    """The forward pass is clean."""
    run = logged(watch=(ALL_TENSORS,))
    run.step(SpoilGradient.apply)
    _, summary = run.close()
    assert summary["first_bad"] == {
        "step": 0, "layer": "act", "channel": "igrad", "direction": "backward", "kind": "nan",
    }  # fmt: skip


def test_infinite_and_huge_values_are_told_apart(logged: Callable[..., Logged]) -> None:
    """A huge value is finite, and no bad one."""
    run = logged(watch=(Watch(tensors=("input",)),))
    run.step(lambda h: h.detach() * 0 + 1e20)
    run.step(lambda h: torch.full_like(h, float("inf")))
    rows, summary = run.close()
    second = [row for row in rows if row["layer"] == "second"]
    assert [(row["huge_count"], row["inf_count"]) for row in second] == [(24, 0), (0, 24)]
    assert (second[1]["finite_abs_max"], summary["first_bad"]["kind"], summary["first_bad"]["step"]) == (None, "inf", 1)


def test_the_run_is_left_alone(logged: Callable[..., Logged], tmp_path: Path) -> None:
    """Losses are equal bit for bit with and without the log."""

    def losses() -> list[float]:
        torch.manual_seed(7)
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters())
        found = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = net(torch.randn(5, 4)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        return found

    plain = losses()
    logged(watch=(ALL_TENSORS,), diagnostics=frozenset(DIAGNOSTICS))
    assert losses() == plain


def test_sampling_writes_each_nth_step(logged: Callable[..., Logged]) -> None:
    """Steps between are not measured at all."""
    run = logged(sample_every=3)
    for _ in range(7):
        run.step()
    rows, summary = run.close()
    assert (sorted({row["step"] for row in rows}), summary["steps_measured"]) == ([0, 3, 6], 3)


def test_a_bad_step_brings_the_steps_before_it(logged: Callable[..., Logged]) -> None:
    """With pre_context each step is measured, and only what leads to a fault is written."""
    run = logged(sample_every=100, pre_context=2)
    for _ in range(6):
        run.step()
    run.step(plant_nan)
    rows, summary = run.close()
    assert sorted({row["step"] for row in rows}) == [0, 4, 5, 6]
    assert summary["first_bad"]["step"] == 6


def test_only_the_steps_right_before_a_bad_one_are_brought(logged: Callable[..., Logged]) -> None:
    """Whether they are in the sample, and so in the log already, or not."""
    run = logged(sample_every=2, pre_context=1)
    for _ in range(3):
        run.step()
    run.step(plant_nan)
    rows, _ = run.close()
    assert list(dict.fromkeys(row["step"] for row in rows)) == [0, 2, 3]


def test_accumulated_gradients_are_one_step(logged: Callable[..., Logged]) -> None:
    """The update ends a step, however many passes there are; their values are joined."""
    run = logged(watch=(Watch(tensors=("output",)),))
    for _ in range(2):
        for size in (1.0, 5.0):
            run.net(torch.full((3, 4), size)).mul(0).sum().backward()
        run.optimizer.step()
    rows, _ = run.close()
    first = [row for row in rows if row["layer"] == "first"]
    assert [row["step"] for row in first] == [0, 1]
    largest = run.net.first(torch.full((4,), 5.0)).max().item()
    assert first[0]["finite_max"] == first[1]["finite_max"] == pytest.approx(largest)


def test_without_an_optimizer_each_call_is_a_step(logged: Callable[..., Logged]) -> None:
    """Inference; the explicit setting is for programs that hold an optimizer and do not use it."""
    run = logged(step_end="forward")
    with torch.no_grad():
        for _ in range(3):
            run.net(torch.randn(3, 4))
    rows, _ = run.close()
    assert sorted({row["step"] for row in rows}) == [0, 1, 2]


def test_the_host_reads_once_a_step(logged: Callable[..., Logged], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many layers and channels there are."""
    reads: list[int] = []

    def counting(vectors: Any) -> list[list[float]]:
        reads.append(len(vectors))
        return to_host(vectors)

    monkeypatch.setattr("aorta.instrumentation.layer_numerics.session.to_host", counting)
    run = logged(watch=(ALL_TENSORS,), diagnostics=frozenset(DIAGNOSTICS))
    refused = ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy")
    originals = {name: getattr(torch.Tensor, name) for name in refused}
    for step in range(3):
        run.net.spoil = None
        run.optimizer.zero_grad()
        # Nothing may come to the host while the model runs.
        for name in refused:
            monkeypatch.setattr(torch.Tensor, name, lambda *_args, name=name: pytest.fail(f"{name} read a value"))
        run.net(torch.ones(3, 4)).square().mean().backward()
        for name, original in originals.items():
            monkeypatch.setattr(torch.Tensor, name, original)
        run.optimizer.step()
        assert len(reads) == step + 1
    assert run.warnings == []


def test_memory_does_not_grow_with_the_steps(logged: Callable[..., Logged]) -> None:
    """What a step measured is let go at its end."""
    run = logged(sample_every=10, pre_context=2)
    sizes = []
    for _ in range(30):
        run.step()
        sizes.append((len(run.session._measured), len(run.session._log._before)))
    assert max(size for size, _ in sizes) == 0
    assert max(size for _, size in sizes) == 2


def test_a_tensor_is_measured_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors take no temporary of their own size, and the pieces add up."""
    values = torch.randn(1000)
    values[[3, 700]] = float("nan")
    values[999] = -float("inf")
    whole = measure(values, 1e10, (-1.0, 1.0))
    monkeypatch.setattr(stats, "_PIECE", 64)
    assert torch.equal(measure(values, 1e10, (-1.0, 1.0)), whole)
    finite = values[torch.isfinite(values)]
    named = dict(zip(FIELDS, whole.tolist(), strict=True))
    assert (named["nan_count"], named["inf_count"]) == (2, 1)
    assert named["finite_max"] == pytest.approx(float(finite.max()))
    assert -named["minus_finite_min"] == pytest.approx(float(finite.min()))
    assert named["oob_count"] == int((finite.abs() > 1).sum()) + 1


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64]
)
def test_every_type_can_be_measured(dtype: torch.dtype) -> None:
    """Types of one byte and whole numbers too."""
    vector = measure(torch.tensor([1.0, -2.0, 3.0]).to(dtype), 1e10)
    assert vector.tolist() == [0, 0, 0, 0, 3, 3, 2]


def test_measurements_join() -> None:
    """Counts add up, extremes are kept."""
    first, second = measure(torch.tensor([1.0, float("nan")]), 1e10), measure(torch.tensor([-5.0]), 1e10)
    assert merge(first, second).tolist() == [1, 0, 0, 0, 5, 1, 5]


def test_the_first_bad_position_is_found() -> None:
    """Flat, and -1 for none."""
    assert first_bad_positions(torch.tensor([[0.0, 1.0], [float("inf"), float("nan")]]), 1).tolist() == [2]
    assert first_bad_positions(torch.zeros(3), 1).tolist() == [-1]


def test_diagnostics_are_in_the_row(logged: Callable[..., Logged]) -> None:
    """Where the first bad value is, and where the tensor lay."""
    run = logged(watch=(Watch(tensors=("input",)),), diagnostics=frozenset({"locate", "addr"}))
    run.step(plant_nan)
    rows, _ = run.close()
    second = next(row for row in rows if row["layer"] == "second")
    assert second["first_bad_index"] == 1 * 8 + 3
    assert second["addr"].startswith("0x")


class Tower(nn.Module):
    """Hands a named tensor on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(embedding_features=x)["embedding_features"]


class Inner(nn.Module):
    """Takes and returns it by name."""

    def forward(self, embedding_features: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"embedding_features": embedding_features * 10}


def test_a_named_tensor_is_followed(logged: Callable[..., Logged]) -> None:
    """By keyword and by key, whole numbers too; what is out of bounds is counted and named."""
    follow = Follow(tensor="embedding_features", bounds=(0.0, 60.0))
    run = logged(watch=(), follow=(follow,), step_end="forward")
    tower = Tower()
    tower(torch.tensor([1, 2, 3]))
    tower(torch.tensor([1, 7, 9]))
    rows, summary = run.close()
    assert [(row["layer"], row["channel"], row["oob_count"]) for row in rows if row["step"] == 1] == [
        ("inner", "embedding_features@input", 0), ("inner", "embedding_features@output", 2),
    ]  # fmt: skip
    assert (summary["first_oob"]["step"], summary["first_oob"]["layer"], summary["first_bad"]) == (1, "inner", None)


def test_a_scope_chooses_layers(logged: Callable[..., Logged]) -> None:
    """By name, by type, and each second one."""
    run = logged(watch=(Watch(scope=Scope(types=("Linear",), stride=2), tensors=("output",)),))
    run.step()
    rows, _ = run.close()
    assert {row["layer"] for row in rows} == {"first"}


def test_a_fault_of_the_log_is_no_fault_of_the_run(
    logged: Callable[..., Logged], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is warned about once, and kept in the summary."""

    def broken(*_args: Any) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("aorta.instrumentation.layer_numerics.session.measure", broken)
    run = logged(watch=(Watch(tensors=("output",)),))
    assert run.step() > 0 and run.step() > 0
    _, summary = run.close()
    assert run.warnings == summary["warnings"]
    assert [one.partition(";")[0] for one in run.warnings] == [
        "after_forward: RuntimeError: no such kernel",
        "watch: nothing was measured: no output with values was seen",
    ]


SCRIPT = """
import sys
import torch
from torch import nn
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    x = torch.ones(2, 4)
    if step == 2:
        x[0, 0] = float("nan")
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
print("arguments", sys.argv[1:], __name__)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(("spec", "warned"), [("", False), ("{bad", True)])
def test_any_script_is_measured_without_an_edit(tmp_path: Path, spec: str, warned: bool) -> None:
    """Its arguments, output and exit code are its own; a bad specification warns, and the run goes on."""
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {**os.environ, "NANLOG_DIR": str(tmp_path / "out"), "NANLOG_SPEC": spec, "RANK": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "aorta.instrumentation.layer_numerics", str(tmp_path / "train.py"), "5", "--x"],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, "arguments ['5', '--x'] __main__\n")
    assert ("layer_numerics: NANLOG_SPEC" in done.stderr) is warned
    summary = json.loads((tmp_path / "out" / "summary_rank3.json").read_text())
    assert (summary["first_bad"]["step"], summary["first_bad"]["layer"]) == (2, "0")
    assert (tmp_path / "out" / "layers_rank3.jsonl").stat().st_size > 0


def test_a_summary_of_before_is_replaced_at_once(logged: Callable[..., Logged], tmp_path: Path) -> None:
    """A run that is killed early leaves no other run's result."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "summary_rank0.json").write_text('{"first_bad": {"step": 7}}')
    logged()
    assert json.loads((tmp_path / "log" / "summary_rank0.json").read_text())["first_bad"] is None


def test_a_missing_script_is_refused() -> None:
    """With exit code 2, and no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "aorta.instrumentation.layer_numerics", "nowhere.py"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "layer_numerics: nowhere.py: no such script\n")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_sharded_parameters_are_measured(logged: Callable[..., Logged], tmp_path: Path) -> None:
    """FSDP2's weights and gradients are looked at where this rank holds them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        run = logged(watch=(ALL_TENSORS,))
        fully_shard(run.net, mesh=init_device_mesh("cpu", (1,)))
        run.optimizer = torch.optim.SGD(run.net.parameters(), lr=0.01)
        run.step()
        rows, summary = run.close()
    finally:
        torch.distributed.destroy_process_group()
    assert (run.warnings, summary["first_bad"]) == ([], None)
    assert {("first", "weight"), ("first", "grad"), ("second", "igrad")} <= {
        (row["layer"], row["channel"]) for row in rows
    }
