"""The torch side of ``inference``: batches, ticks, checks.

Imports torch; import this module from ``setup()`` or ``run()``. Shape suffixes: B batch, P prompt tokens,
V vocabulary, Q requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from aorta.workloads.base import WorkloadResult
from aorta.workloads.checksum import checksum_hex, fold_checksums, tensor_checksum
from aorta.workloads.decoding import Decoder
from aorta.workloads.device import synchronize
from aorta.workloads.dtypes import torch_dtype
from aorta.workloads.failures import FailureLog, Phase
from aorta.workloads.finite import nonfinite_counts
from aorta.workloads.inject import Injector
from aorta.workloads.models import ModelSpec, build_model, parameter_count
from aorta.workloads.timing import Stopwatch

if TYPE_CHECKING:
    from aorta.workloads.inference import InferenceConfig


@dataclass(frozen=True, kw_only=True)
class StepFindings:
    """What the logits of one step were like, read from the device.

    Attributes:
        checksum: 64-bit checksum of the logits of all passes, in order.
        nonfinite: For each pass with such values: its name, number of NaN, number of infinities.
    """

    checksum: int
    nonfinite: list[tuple[str, int, int]]


class LogitsWatch:
    """Follows the logits of one step on the device and reads from it once, at the end."""

    def __init__(self, device: torch.device) -> None:
        self._checksum = torch.zeros((), dtype=torch.int64, device=device)
        self._names: list[str] = []
        self._counts: list[torch.Tensor] = []

    def observe(self, name: str, logits: torch.Tensor) -> None:
        """Adds the logits of one pass, of any shape."""
        self._checksum = fold_checksums(self._checksum, tensor_checksum(logits))
        self._names.append(name)
        self._counts.append(nonfinite_counts(logits))

    def read(self) -> StepFindings:
        """Waits for the device and returns what was seen."""
        checksum, *counts = torch.cat([self._checksum[None], *self._counts]).tolist()
        triples = zip(self._names, counts[::2], counts[1::2], strict=True)
        return StepFindings(checksum=checksum, nonfinite=[t for t in triples if t[1] or t[2]])


@dataclass(kw_only=True)
class _Active:
    """A request that holds a row of the decoder."""

    row: int
    tokens_left: int


class InferenceSession:
    """A model that serves requests on one device.

    Args:
        settings: Configuration of the workload.
        device: Where it computes.
        injector: Planted faults of this trial.

    Attributes:
        model: The model, in evaluation mode.
    """

    def __init__(self, settings: InferenceConfig, device: torch.device, injector: Injector | None = None) -> None:
        self._settings = settings
        self._device = device
        self._injector = Injector() if injector is None else injector
        self._at = -1  # The step that planted faults go by, negative in the warm-up.
        model = build_model(_model_spec(settings), settings.seed)
        self.parameter_count = parameter_count(model)
        self.model = model.to(device=device, dtype=torch_dtype(settings.dtype)).eval()
        self._generates = settings.model.kind != "encoder_transformer"
        wait = partial(synchronize, device)
        self._steps, self._prefills, self._decodes = Stopwatch(wait), Stopwatch(wait), Stopwatch(wait)
        self._failures = FailureLog("inference")
        self._tokens = 0

    def run(self, steps: int) -> WorkloadResult:
        """Runs ``steps`` batches, or up to ``steps`` ticks, after the warm-up."""
        with torch.inference_mode():
            return self._run_offline(steps) if self._settings.mode == "offline_batch" else self._run_continuous(steps)

    def buffers(self) -> list[str]:
        """Returns the names of what planted faults can strike."""
        passes = ["prefill_logits", *(["decode_logits"] if self._generates else [])]
        return ["input", *passes, *(name for name, _ in self.model.named_parameters())]

    def _begin(self, step: int) -> None:
        """Lets planted faults strike the process and the parameters at the start of a timed step."""
        self._at = step
        if self._injector:
            self._injector.step(step)
            for name, parameter in self.model.named_parameters():
                self._injector.tensor(name, parameter, step=step)

    def _run_offline(self, steps: int) -> WorkloadResult:
        """Answers the same batch ``steps`` times."""
        s = self._settings
        prompts_BP = self._prompts(s.request.batch_size)
        decoder = self._decoder(s.request.batch_size)
        for step in range(s.warmup_steps):
            self._check(self._answer_batch(decoder, prompts_BP), step, "warmup")
        self._forget_warmup()
        first: int | None = None
        for step in range(steps):
            with self._steps.measure():
                self._begin(step)
                findings = self._answer_batch(decoder, prompts_BP)
            self._check(findings, step, "timed")
            first = findings.checksum if first is None else first
            if s.checks.compare_logits_checksum and findings.checksum != first:
                expected, found = checksum_hex(first), checksum_hex(findings.checksum)
                self._failures.add(
                    step=step,
                    check="compare_logits_checksum",
                    hint="the same batch gave other logits than the first time",
                    tensor="logits",
                    expected=expected,
                    found=found,
                )
        return self._result(steps, steps, first or 0, {})

    def _run_continuous(self, steps: int) -> WorkloadResult:
        """Serves arriving requests for up to ``steps`` ticks."""
        s = self._settings
        total, places = s.request.num_requests, s.serving.continuous_batch.max_active_requests
        prompts_QP = self._prompts(total)
        decoder = self._decoder(places)
        for step in range(s.warmup_steps):
            watch = LogitsWatch(self._device)
            self._prefill(decoder, [0], prompts_QP[:1], watch)
            if self._generates and s.request.generate_tokens > 1:
                self._decode(decoder, [0], watch)
            self._check(watch.read(), step, "warmup")
        self._forget_warmup()

        free_rows = deque(range(places))
        waiting: deque[int] = deque()
        active: list[_Active] = []
        arrived = completed = ticks = 0
        checksum = torch.zeros((), dtype=torch.int64)
        while ticks < steps and completed < total:
            with self._steps.measure():
                self._begin(ticks)
                watch = LogitsWatch(self._device)
                if arrived < total:
                    waiting.append(arrived)
                    arrived += 1
                # Those that were active before this tick decode; a prefill brings its own first token.
                decoding = list(active)
                admitted = [waiting.popleft() for _ in range(min(len(waiting), len(free_rows)))]
                if admitted:
                    rows = [free_rows.popleft() for _ in admitted]
                    self._prefill(decoder, rows, prompts_QP[admitted], watch)
                    left = s.request.generate_tokens - 1 if self._generates else 0
                    active += [_Active(row=row, tokens_left=left) for row in rows]
                if decoding:
                    self._decode(decoder, [request.row for request in decoding], watch)
                    for request in decoding:
                        request.tokens_left -= 1
                done = [request for request in active if request.tokens_left == 0]
                active = [request for request in active if request.tokens_left > 0]
                free_rows.extend(request.row for request in done)
                completed += len(done)
                findings = watch.read()
            self._check(findings, ticks, "timed")
            checksum = fold_checksums(checksum, torch.tensor(findings.checksum))
            ticks += 1
        progress = {"requests_completed": completed, "requests_remaining": total - completed}
        return self._result(ticks, steps, int(checksum), progress)

    def _answer_batch(self, decoder: Decoder, prompts_BP: torch.Tensor) -> StepFindings:
        rows = list(range(len(prompts_BP)))
        watch = LogitsWatch(self._device)
        self._prefill(decoder, rows, prompts_BP, watch)
        if self._generates:
            for _ in range(self._settings.request.generate_tokens - 1):
                self._decode(decoder, rows, watch)
        return watch.read()

    def _prefill(self, decoder: Decoder, rows: list[int], prompts_BP: torch.Tensor, watch: LogitsWatch) -> None:
        if self._injector:
            prompts_BP = prompts_BP.clone()  # The next step asks the same again, unharmed.
            self._injector.tensor("input", prompts_BP, step=self._at)
        with self._prefills.measure():
            logits = decoder.prefill(rows, prompts_BP) if self._generates else self.model(prompts_BP)
        self._injector.tensor("prefill_logits", logits, step=self._at)
        watch.observe("prefill logits", logits)
        # An encoder's work is measured in the tokens that it read; a decoder's in those that it wrote.
        self._tokens += len(rows) if self._generates else prompts_BP.numel()

    def _decode(self, decoder: Decoder, rows: list[int], watch: LogitsWatch) -> None:
        with self._decodes.measure():
            logits_BV = decoder.decode(rows)
        self._injector.tensor("decode_logits", logits_BV, step=self._at)
        watch.observe("decode logits", logits_BV)
        self._tokens += len(rows)

    def _decoder(self, rows: int) -> Decoder:
        return Decoder(self.model, rows, use_cache=self._settings.serving.kv_cache)

    def _prompts(self, count: int) -> torch.Tensor:
        """Draws prompts_QP on the CPU, so that every device is asked the same."""
        draw = torch.Generator().manual_seed(self._settings.seed)
        shape = (count, self._settings.request.prompt_len)
        return torch.randint(self._settings.model.vocab_size, shape, generator=draw).to(self._device)

    def _forget_warmup(self) -> None:
        self._prefills.times_ms.clear()
        self._decodes.times_ms.clear()
        self._tokens = 0

    def _check(self, findings: StepFindings, step: int, phase: Phase) -> None:
        checks = self._settings.checks
        for name, nan_count, inf_count in findings.nonfinite:
            if checks.fail_on_nan_logits and nan_count:
                check, what = "fail_on_nan_logits", "NaN"
            elif checks.fail_on_nonfinite_output:
                check, what = "fail_on_nonfinite_output", "values that are not finite"
            else:
                continue
            self._failures.add(
                step=step,
                phase=phase,
                check=check,
                hint=f"{what} in the {name}",
                tensor=name,
                nan_count=nan_count,
                inf_count=inf_count,
            )

    def _result(self, executed: int, configured: int, checksum: int, progress: dict[str, Any]) -> WorkloadResult:
        elapsed = self._steps.total_sec
        return WorkloadResult(
            passed=self._failures.count == 0,
            failure_count=self._failures.count,
            first_failure_iteration=self._failures.first_step,
            failure_details=self._failures.details,
            total_iterations=executed,
            step_times_ms=self._steps.times_ms,
            elapsed_sec=elapsed,
            metrics={
                "prefill_latency_ms": median(self._prefills.times_ms),
                "decode_latency_ms": median(self._decodes.times_ms) if self._decodes.times_ms else None,
                "tokens_per_sec": self._tokens / elapsed if elapsed else None,
                "decoded_tokens": self._tokens if self._generates else 0,
                "logits_checksum": checksum_hex(checksum),
                "parameter_count": self.parameter_count,
                **self._steps.metrics(),
                **progress,
                **({"injected": self._injector.report()} if self._injector else {}),
            },
            main_work_started=True,
            executed_iterations=executed,
            configured_iterations=configured,
        )


def _model_spec(settings: InferenceConfig) -> ModelSpec:
    model, request = settings.model, settings.request
    attention = {"mlp": "none", "decoder_transformer": "causal", "encoder_transformer": "full"}
    return ModelSpec(
        attention=attention[model.kind],  # type: ignore[arg-type]
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        ffn_size=model.ffn_size,
        vocab_size=model.vocab_size,
        num_experts=model.num_experts,
        max_positions=request.prompt_len + request.generate_tokens,
    )
