"""The torch side of ``llm_determinism``: model, snapshot, replays, comparison.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from aorta.llm_determinism.capture import Capture
from aorta.llm_determinism.compare import Divergence, Place, Replay, divergences
from aorta.llm_determinism.snapshot import Snapshot
from aorta.llm_determinism.watch import BlockHooks, Strike, Watch
from aorta.workloads.base import WorkloadResult
from aorta.workloads.checksum import fold_checksums
from aorta.workloads.device import synchronize
from aorta.workloads.dtypes import torch_dtype
from aorta.workloads.failures import FailureLog
from aorta.workloads.inject import Injector, merge_reports
from aorta.workloads.models import ModelSpec, build_model, parameter_count
from aorta.workloads.process_group import RankInfo, gather_objects
from aorta.workloads.sharding import local_part, shard_model
from aorta.workloads.timing import Stopwatch

if TYPE_CHECKING:
    from aorta.workloads.llm_determinism import LlmDeterminismConfig

_LEARNING_RATE = 1e-4
_REASONS = 32
_BLOCK_NAME = re.compile(r"blocks\.(\d+)\.")


@dataclass(kw_only=True)
class Findings:
    """What one rank found, as it is shared with the others.

    Attributes:
        failure_count: Pairs of runs that differ.
        first_step: First step with such a pair.
        details: The failures, as ``failure_details`` has them.
        first_reasons: The first tensors that differ, in order.
        divergence_count: Number of tensors that differ, over all pairs.
        missed_by_plain_sum: Those of them whose plain sum is the same.
        digests: A digest of all checksums of each run, in order.
        injected: The report of planted faults.
    """

    failure_count: int = 0
    first_step: int | None = None
    details: list[dict[str, Any]] = field(default_factory=list)
    first_reasons: list[Divergence] = field(default_factory=list)
    divergence_count: int = 0
    missed_by_plain_sum: int = 0
    digests: list[str] = field(default_factory=list)
    injected: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One replay: this rank's own checksums, and those that are reported (joined over ranks in ``global`` mode)."""

    own: Replay
    shown: Replay


class DeterminismSession:
    """A model whose training step is replayed on one rank; needs the process group.

    Args:
        settings: Configuration of the workload.
        info: This rank among the others.
        device: Where it computes.
        injector: Planted faults of this rank and trial.
        trial: The trial's number, for the capture.

    Attributes:
        model: The sharded model.
        optimizer: Its optimiser.
    """

    def __init__(
        self,
        settings: LlmDeterminismConfig,
        info: RankInfo,
        device: torch.device,
        injector: Injector | None = None,
        *,
        trial: int = 0,
    ) -> None:
        self._settings = settings
        self._info = info
        self._device = device
        self._injector = Injector() if injector is None else injector
        self.model = build_model(_model_spec(settings), settings.seed).to(device)
        self.parameter_count = parameter_count(self.model)
        shard_model(self.model, device, info.world_size, torch_dtype(settings.dtype))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=_LEARNING_RATE, fused=True)
        self._hooks = BlockHooks(self.model)
        draw = torch.Generator().manual_seed(settings.seed * 1_000_003 + info.rank)
        ids = torch.randint(settings.vocab_size, (settings.batch_size, settings.seq_len + 1), generator=draw)
        self._tokens_BT, self._targets_BT = ids[:, :-1].to(device), ids[:, 1:].to(device)
        self._capture = None
        if settings.capture_dir is not None:
            self._capture = Capture(settings.capture_dir, rank=info.rank, trial=trial)
        self._failures = FailureLog("llm_determinism")
        self._findings = Findings()

    def buffers(self) -> list[str]:
        """Returns the names of what planted faults can strike."""
        blocks = [f"blocks.{n}.{side}" for n in range(self._settings.num_layers) for side in ("input", "output")]
        names = [name for name, _ in self.model.named_parameters()]
        gradients = [f"{name}.grad" for name in [*blocks, *names]]
        return ["input", "logits", "loss", *blocks, *names, *gradients, *(f"{name}.updated" for name in names)]

    def run(self, steps: int) -> WorkloadResult:
        """Replays ``steps`` pairs of runs, then shares what every rank found; a collective."""
        for _ in range(self._settings.warmup_steps):
            self._train(None, None)
        snapshot = Snapshot(self.model, self.optimizer)
        stopwatch = Stopwatch(partial(synchronize, self._device))
        reference: _Run | None = None
        reports = []
        for step in range(steps):
            with stopwatch.measure():
                self._injector.step(step)
                r1 = self._replay(snapshot, None)
                # Faults are planted in the second replay only: the same fault in both would hide itself.
                r2 = self._replay(snapshot, self._strike(step))
            self._compare(r1, r2, step=step, runs=("r1", "r2"))
            if reference is None:
                reference = r1
            else:
                self._compare(reference, r1, step=step, runs=("r1 of step 0", "r1"))
            reports.append(self._report_step(step, r1, r2))
        return self._result(steps, stopwatch, reports)

    def close(self) -> None:
        """Closes the capture file."""
        if self._capture is not None:
            self._capture.close()

    def _strike(self, step: int) -> Strike | None:
        if not self._injector:
            return None
        self._injector.forget()  # Every step computes the same, so what a buffer held before is what it should hold.
        return lambda name, tensor: self._injector.tensor(name, tensor, step=step)

    def _replay(self, snapshot: Snapshot, strike: Strike | None) -> _Run:
        """Goes back to the snapshot and trains for the one step."""
        snapshot.restore()
        watch = Watch()
        self._train(watch, strike)
        sums = watch.tensors()
        own = watch.replay(sums)
        if self._settings.checksum_mode == "per_rank":
            return _Run(own=own, shown=own)
        return _Run(own=own, shown=watch.replay(self._joined(sums)))

    def _joined(self, sums: torch.Tensor) -> torch.Tensor:
        """Joins every rank's checksums [2, n] tensor by tensor; a collective."""
        gathered = [torch.empty_like(sums) for _ in range(self._info.world_size)]
        dist.all_gather(gathered, sums.contiguous())
        plain, ordered = gathered[0]
        for other_plain, other_ordered in gathered[1:]:
            plain, ordered = plain + other_plain, fold_checksums(ordered, other_ordered)
        return torch.stack([plain, ordered])

    def _train(self, watch: Watch | None, strike: Strike | None) -> None:
        """Does forward, backward and update, and shows each tensor first to the planted faults, then to the watch."""

        def seen(place: Place, buffer: str, tensor: torch.Tensor) -> None:
            if strike is not None:
                strike(buffer, tensor)
            if watch is not None:
                watch.observe(place, tensor)

        self.optimizer.zero_grad(set_to_none=True)
        self._hooks.attach(watch, strike)
        tokens_BT = self._tokens_BT
        if strike is not None:
            tokens_BT = tokens_BT.clone()  # The next replay starts from the tokens as they were.
            strike("input", tokens_BT)
        # A parameter that is wrong by now would else be named by its first use, or not at all where rounding hides it.
        for name, tensor in self._local_parameters():
            seen(Place(block=_block_of(name), direction="forward", tensor=name, role="parameter"), name, tensor)
        logits_BTV = self.model(tokens_BT)
        seen(Place(block=None, direction="forward", tensor="logits", role="output"), "logits", logits_BTV)
        loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), self._targets_BT.flatten())
        seen(Place(block=None, direction="forward", tensor="loss", role="loss"), "loss", loss)
        loss.backward()
        self._hooks.attach(None, None)
        # Backward goes through the model from its end.
        for name, parameter in reversed(list(self.model.named_parameters())):
            if parameter.grad is not None:
                buffer = f"{name}.grad"
                place = Place(block=_block_of(name), direction="backward", tensor=buffer, role="parameter")
                seen(place, buffer, local_part(parameter.grad))
        self.optimizer.step()
        for name, tensor in self._local_parameters():
            place = Place(block=_block_of(name), direction="update", tensor=name, role="parameter")
            seen(place, f"{name}.updated", tensor)

    def _local_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.model.named_parameters():
            yield name, local_part(parameter.detach())

    def _compare(self, first: _Run, second: _Run, *, step: int, runs: tuple[str, str]) -> None:
        """Records where two runs differ on this rank."""
        rank = self._info.rank
        found = list(divergences(first.own, second.own, step=step, runs=runs, rank=rank))
        if not found:
            return
        of = self._findings
        of.divergence_count += len(found)
        of.missed_by_plain_sum += sum(not one.seen_by_plain_sum for one in found)
        for one in islice(found, max(0, _REASONS - len(of.first_reasons))):
            expected, other = first.shown.ordered[one.order], second.shown.ordered[one.order]
            of.first_reasons.append(replace(one, expected=expected, found=other))
        place = found[0].place
        which = "the two replays part" if runs[0] == "r1" else "a first replay parts from that of step 0"
        self._failures.add(
            step=step,
            check="replays_agree" if runs[0] == "r1" else "steps_agree",
            hint=f"{which} at {place}",
            rank=rank,
            block=place.block,
            direction=place.direction,
            tensor=place.tensor,
            order=found[0].order,
            divergent_tensors=len(found),
            compared_tensors=len(first.own.places),
        )

    def _report_step(self, step: int, r1: _Run, r2: _Run) -> dict[str, Any]:
        for name, run in (("r1", r1), ("r2", r2)):
            self._findings.digests.append(run.own.digest())
            if self._capture is not None:
                self._capture.write(run.shown, step=step, run=name)
        loss = r1.own.index_of("loss")
        return {
            "step": step,
            "loss_bits_r1": r1.shown.plain[loss],
            "loss_bits_r2": r2.shown.plain[loss],
            "num_blocks_checked": r1.own.blocks_checked(),
        }

    def _result(self, steps: int, stopwatch: Stopwatch, reports: list[dict[str, Any]]) -> WorkloadResult:
        mine = replace(
            self._findings,
            failure_count=self._failures.count,
            first_step=self._failures.first_step,
            details=self._failures.details,
            injected=self._injector.report(),
        )
        everyone: list[Findings] = gather_objects(mine, self._info.world_size)
        details = _without_consequences([entry for one in everyone for entry in one.details])
        reasons = sorted((d for one in everyone for d in one.first_reasons), key=lambda d: d.sort_key)
        # One outcome is what all ranks together computed in one run.
        outcomes = Counter(zip(*(one.digests for one in everyone), strict=True))
        failure_count = sum(one.failure_count for one in everyone)
        s = self._settings
        return WorkloadResult(
            passed=failure_count == 0,
            failure_count=failure_count,
            first_failure_iteration=min((o.first_step for o in everyone if o.first_step is not None), default=None),
            failure_details=details,
            total_iterations=steps,
            step_times_ms=stopwatch.times_ms,
            elapsed_sec=stopwatch.total_sec,
            metrics={
                "model_label": s.label,
                "num_layers": s.num_layers,
                "num_experts": s.num_experts,
                "parameter_count": self.parameter_count,
                "dtype": s.dtype,
                "device": str(self._device),
                "checksum_mode": s.checksum_mode,
                "rank": self._info.rank,
                "world_size": self._info.world_size,
                "ranks_with_divergence": [rank for rank, one in enumerate(everyone) if one.failure_count],
                "first_divergence": reasons[0].to_json() if reasons else None,
                "divergence_reasons": [one.reason() for one in reasons[:_REASONS]],
                "divergence_count": sum(one.divergence_count for one in everyone),
                "missed_by_plain_sum": sum(one.missed_by_plain_sum for one in everyone),
                "distinct_outcomes": len(outcomes),
                "outcome_counts": sorted(outcomes.values(), reverse=True),
                "steps": reports,
                **stopwatch.metrics(),
                **({"injected": merge_reports([one.injected for one in everyone])} if self._injector else {}),
            },
            main_work_started=True,
            executed_iterations=steps,
            configured_iterations=steps,
        )


def _without_consequences(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorts all ranks' failures, and leaves the hint to the ranks that were the first of their step to diverge.

    A collective carries a fault to the other ranks; a hint that names those would send its reader to the wrong one.
    """
    first: dict[tuple[int, str], int] = {}
    for entry in details:
        key = entry["step"], entry["check"]
        first[key] = min(first.get(key, entry["order"]), entry["order"])
    kept = [
        entry
        if entry["order"] == first[entry["step"], entry["check"]]
        else {name: value for name, value in entry.items() if name != "hint"}
        for entry in details
    ]
    return sorted(kept, key=lambda entry: (entry["step"], entry["check"], entry["order"], entry["rank"]))


def _block_of(parameter: str) -> int | None:
    found = _BLOCK_NAME.match(parameter)
    return None if found is None else int(found[1])


def _model_spec(settings: LlmDeterminismConfig) -> ModelSpec:
    return ModelSpec(
        attention="causal",
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        ffn_size=settings.ffn_size,
        vocab_size=settings.vocab_size,
        num_experts=settings.num_experts,
        max_positions=settings.seq_len,
        gated_ffn=True,
    )
