"""The torch side of ``training``: model, data, steps, checks.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aorta.workloads.base import WorkloadResult
from aorta.workloads.device import synchronize
from aorta.workloads.dtypes import torch_dtype
from aorta.workloads.failures import FailureLog, Phase
from aorta.workloads.finite import NonFinite, find_nonfinite
from aorta.workloads.inject import Injector, merge_reports
from aorta.workloads.models import ModelSpec, TokenModel, build_model, parameter_count
from aorta.workloads.process_group import RankInfo, gather_objects
from aorta.workloads.sharding import local_part, shard_model
from aorta.workloads.timing import Stopwatch

if TYPE_CHECKING:
    from aorta.workloads.training import TrainingConfig, TrainingModelConfig

_HINTS = {
    "fail_on_nan_loss": "the loss is not finite",
    "fail_on_nan_grad": "the gradient is not finite after the reduction over ranks",
    "fail_on_nonfinite_output": "the model's logits are not finite",
}


class TrainingSession:
    """A model under training on one rank; needs the process group.

    Args:
        settings: Configuration of the workload.
        info: This rank among the others.
        device: Where it computes.
        injector: Planted faults of this rank and trial.

    Attributes:
        model: The parallelised model.
        optimizer: Its optimiser.
    """

    def __init__(
        self, settings: TrainingConfig, info: RankInfo, device: torch.device, injector: Injector | None = None
    ) -> None:
        self._settings = settings
        self._info = info
        self._device = device
        self._injector = Injector() if injector is None else injector
        self._dtype = torch_dtype(settings.dtype)
        model = build_model(_model_spec(settings.model, settings.seq_len), settings.seed).to(device)
        self.parameter_count = parameter_count(model)
        self.model = self._parallelise(model)
        opt = settings.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=opt.lr, betas=opt.betas, eps=opt.eps, weight_decay=opt.weight_decay, fused=True
        )
        self._data = torch.Generator().manual_seed(settings.seed * 1_000_003 + info.rank)
        self._failures = FailureLog("training")

    def train(self, steps: int) -> WorkloadResult:
        """Runs the warm-up and ``steps`` timed steps, then shares what every rank found; a collective."""
        stopwatch = Stopwatch(partial(synchronize, self._device))
        for step in range(self._settings.warmup_steps):
            self._check(*self._step(*self._next_batch(), at=-1), step, "warmup")
        loss = torch.zeros(())
        for step in range(steps):
            batch = self._next_batch()
            with stopwatch.measure():
                loss, logits_BTV = self._step(*batch, at=step)
            self._check(loss, logits_BTV, step, "timed")
        return self._result(steps, stopwatch, float(loss))

    def buffers(self) -> list[str]:
        """Returns the names of what planted faults can strike."""
        names = [name for name, _ in self._named_parameters()]
        return ["input", "logits", "loss", *names, *(f"{name}.grad" for name in names)]

    def _named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the parameters under their names in the model, whatever wraps it."""
        for name, parameter in self.model.named_parameters():
            yield name.removeprefix("module."), parameter

    def _parallelise(self, model: TokenModel) -> nn.Module:
        if self._settings.parallelism == "ddp":
            return DistributedDataParallel(model, device_ids=[self._device] if self._device.type == "cuda" else None)
        shard_model(model, self._device, self._info.world_size, self._dtype)
        return model

    def _next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws tokens and the tokens that follow them, both BT, on the CPU so that every device sees the same."""
        s = self._settings
        shape = (s.batch_size, s.seq_len + 1)
        ids = torch.randint(s.model.vocab_size, shape, generator=self._data)
        return ids[:, :-1].to(self._device), ids[:, 1:].to(self._device)

    def _step(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor, *, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Does forward, backward and update; returns the loss and logits_BTV, and leaves the gradients in place.

        ``at`` is the step that planted faults go by, negative in the warm-up.
        """
        self._injector.step(at)
        self._injector.tensor("input", tokens_BT, step=at)
        self._strike_parameters(at, gradients=False)
        self.optimizer.zero_grad(set_to_none=True)
        # FSDP casts by its own policy; DDP leaves the parameters float32 and needs autocast.
        cast = self._settings.parallelism == "ddp" and self._dtype != torch.float32
        with torch.autocast(self._device.type, dtype=self._dtype, enabled=cast):
            logits_BTV = self.model(tokens_BT)
        self._injector.tensor("logits", logits_BTV, step=at)
        loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten())
        self._injector.tensor("loss", loss, step=at)
        loss.backward()
        self._strike_parameters(at, gradients=True)
        self.optimizer.step()
        return loss.detach(), logits_BTV.detach()

    def _strike_parameters(self, at: int, *, gradients: bool) -> None:
        """Offers this rank's parameters, or their gradients, to the planted faults."""
        if not self._injector:
            return
        for name, parameter in self._named_parameters():
            if not gradients:
                self._injector.tensor(name, local_part(parameter.detach()), step=at)
            elif parameter.grad is not None:
                self._injector.tensor(f"{name}.grad", local_part(parameter.grad), step=at)

    def _check(self, loss: torch.Tensor, logits_BTV: torch.Tensor, step: int, phase: Phase) -> None:
        """Looks at a finished step, outside the timed part; reads from the device once if all is well."""
        checks = self._settings.checks
        watched: list[tuple[str, str, torch.Tensor]] = []
        if checks.fail_on_nonfinite_output:
            watched.append(("fail_on_nonfinite_output", "logits", logits_BTV))
        if checks.fail_on_nan_loss:
            watched.append(("fail_on_nan_loss", "loss", loss))
        if checks.fail_on_nan_grad:
            for name, parameter in self._named_parameters():
                if parameter.grad is not None:
                    watched.append(("fail_on_nan_grad", f"{name}.grad", local_part(parameter.grad)))
        check_of = {name: check for check, name, _ in watched}
        by_check: dict[str, list[NonFinite]] = {}
        for found in find_nonfinite([(name, tensor) for _, name, tensor in watched]):
            by_check.setdefault(check_of[found.name], []).append(found)
        for check, bad in by_check.items():
            others = " (and other tensors)" if len(bad) > 1 else ""
            self._failures.add(
                step=step,
                phase=phase,
                check=check,
                hint=f"{_HINTS[check]}: {bad[0].name}{others}",
                rank=self._info.rank,
                tensor=bad[0].name,
                tensor_count=len(bad),
                nan_count=bad[0].nan_count,
                inf_count=bad[0].inf_count,
            )

    def _result(self, steps: int, stopwatch: Stopwatch, final_loss: float) -> WorkloadResult:
        # One exchange at the end: a collective at every step would add to what is being watched.
        mine = (self._failures.count, self._failures.first_step, self._failures.details, final_loss)
        gathered = gather_objects((*mine, self._injector.report()), self._info.world_size)
        failure_count = sum(count for count, _, _, _, _ in gathered)
        first_steps = [first for _, first, _, _, _ in gathered if first is not None]
        details = [entry for _, _, entries, _, _ in gathered for entry in entries]
        reports = [report for _, _, _, _, report in gathered]
        details.sort(key=lambda entry: (entry["phase"] == "timed", entry["step"], entry["rank"]))
        s = self._settings
        return WorkloadResult(
            passed=failure_count == 0,
            failure_count=failure_count,
            first_failure_iteration=min(first_steps, default=None),
            failure_details=details,
            total_iterations=steps,
            step_times_ms=stopwatch.times_ms,
            elapsed_sec=stopwatch.total_sec,
            metrics={
                "parallelism": s.parallelism,
                "rank": self._info.rank,
                "world_size": self._info.world_size,
                "device": str(self._device),
                "dtype": s.dtype,
                "model_kind": s.model.kind,
                "parameter_count": self.parameter_count,
                "final_loss": sum(loss for _, _, _, loss, _ in gathered) / len(gathered),
                **stopwatch.metrics(),
                **({"injected": merge_reports(reports)} if self._injector else {}),
            },
            main_work_started=True,
            executed_iterations=steps,
            configured_iterations=steps,
        )


def _model_spec(model: TrainingModelConfig, seq_len: int) -> ModelSpec:
    return ModelSpec(
        attention="none" if model.kind == "mlp" else "causal",
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        ffn_size=model.ffn_size,
        vocab_size=model.vocab_size,
        num_experts=model.num_experts if model.kind == "moe_transformer" else 1,
        max_positions=seq_len,
    )
