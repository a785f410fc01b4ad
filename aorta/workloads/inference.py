"""``inference``: a model answers synthetic requests, in whole batches or continuously batched.

``offline_batch`` repeats the same batch ``steps`` times and expects the same bits each time. ``continuous_batch``
works in ticks: requests arrive one a tick, are prefilled when a place is free, and all active ones decode one token
a tick; ``steps`` is the budget of ticks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from aorta.workloads.base import ConfigProblem, TrialShape, WorkloadResult
from aorta.workloads.config import NOT_NEGATIVE, POSITIVE, ConfigBlock, parse_config
from aorta.workloads.configured import ConfiguredWorkload
from aorta.workloads.dtypes import BITS, DTYPE_FIELD, DtypeName
from aorta.workloads.inject import TRIAL_INDEX_KEY, FaultConfig, Injector
from aorta.workloads.inject_check import Buffers, BufferShape, trial_fault_problems

if TYPE_CHECKING:
    from aorta.workloads.inference_session import InferenceSession


@dataclass(frozen=True, kw_only=True)
class RequestConfig(ConfigBlock):
    """``workload_config.request`` of ``inference``."""

    batch_size: int = field(default=4, metadata=POSITIVE)
    """Requests in the batch of ``offline_batch``."""
    prompt_len: int = field(default=128, metadata=POSITIVE)
    """Tokens of a prompt."""
    generate_tokens: int = field(default=32, metadata=POSITIVE)
    """Tokens to generate a request: the first by the prefill, each further one by a decode pass. Not used by
    ``encoder_transformer``, which encodes its prompt and is done."""
    num_requests: int = field(default=16, metadata=POSITIVE)
    """Requests that arrive in ``continuous_batch``."""


@dataclass(frozen=True, kw_only=True)
class InferenceModelConfig(ConfigBlock):
    """``workload_config.model`` of ``inference``."""

    kind: Literal["mlp", "encoder_transformer", "decoder_transformer"] = "decoder_transformer"
    """``mlp`` sees the last token only; the encoder attends both ways and generates nothing; the decoder is causal."""
    hidden_size: int = field(default=512, metadata=POSITIVE)
    """Width of the residual stream."""
    num_layers: int = field(default=4, metadata=POSITIVE)
    """Number of blocks."""
    num_heads: int = field(default=8, metadata=POSITIVE)
    """Attention heads of the transformers; divides ``hidden_size``. Not used by ``mlp``."""
    ffn_size: int = field(default=2048, metadata=POSITIVE)
    """Inner width of a feed-forward network."""
    vocab_size: int = field(default=32000, metadata=POSITIVE)
    """Number of token ids."""
    num_experts: int = field(default=1, metadata=POSITIVE)
    """Feed-forward networks a block; from 2 on each token goes to the one its router scores highest."""

    def value_problems(self) -> Iterator[tuple[str, str]]:
        """Checks that the heads divide the width."""
        if self.kind != "mlp" and self.hidden_size % self.num_heads:
            yield "num_heads", f"is {self.num_heads}; use a divisor of hidden_size, which is {self.hidden_size}"


@dataclass(frozen=True, kw_only=True)
class ContinuousBatchConfig(ConfigBlock):
    """``workload_config.serving.continuous_batch`` of ``inference``."""

    enabled: bool | None = None
    """Says again what ``mode`` says; a contradiction is refused. Leave it out to follow ``mode``."""
    max_active_requests: int = field(default=8, metadata=POSITIVE)
    """Requests that are worked on at a time; further ones wait."""
    arrival_pattern: Literal["fixed"] = "fixed"
    """``fixed``: one request arrives at the start of each tick until all have arrived."""


@dataclass(frozen=True, kw_only=True)
class ServingConfig(ConfigBlock):
    """``workload_config.serving`` of ``inference``."""

    kv_cache: bool = True
    """Decode from stored keys and values; false computes the whole sequence again for every token."""
    continuous_batch: ContinuousBatchConfig = field(default_factory=ContinuousBatchConfig)
    """Settings of ``continuous_batch``."""


@dataclass(frozen=True, kw_only=True)
class InferenceChecksConfig(ConfigBlock):
    """``workload_config.checks`` of ``inference``; a check that is false is off."""

    fail_on_nan_logits: bool = True
    """No logit is NaN."""
    fail_on_nonfinite_output: bool = True
    """No logit is infinite (nor NaN, where ``fail_on_nan_logits`` is off)."""
    compare_logits_checksum: bool = True
    """``offline_batch``: the bits of all logits of a step are those of step 0, which had the same inputs."""


@dataclass(frozen=True, kw_only=True)
class InferenceConfig(ConfigBlock):
    """``workload_config`` of ``inference``."""

    mode: Literal["offline_batch", "continuous_batch"] = "offline_batch"
    """Whole batches, or requests that come and go."""
    seed: int = field(default=1234, metadata=NOT_NEGATIVE)
    """Fixes parameters and prompts."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """``cuda`` means ROCm too, and fails where there is none; ``auto`` falls back to the CPU."""
    dtype: DtypeName = field(default="bfloat16", metadata=DTYPE_FIELD)
    """What parameters, activations and the cache are held and computed in."""
    warmup_steps: int = field(default=1, metadata=NOT_NEGATIVE)
    """Untimed work before the ``steps`` that count, checked all the same: a batch each, or in
    ``continuous_batch`` a prefill and a decode pass of one request that is then forgotten."""
    request: RequestConfig = field(default_factory=RequestConfig)
    """What is asked of the model."""
    model: InferenceModelConfig = field(default_factory=InferenceModelConfig)
    """Shape of the model."""
    serving: ServingConfig = field(default_factory=ServingConfig)
    """How requests are served."""
    checks: InferenceChecksConfig = field(default_factory=InferenceChecksConfig)
    """What fails a trial."""
    inject: tuple[FaultConfig, ...] = ()
    """Planted faults, in ``input`` (token ids of the prompts), ``prefill_logits``, ``decode_logits`` and parameters by
    name. What ``offline_batch`` compares with is step 0, so a fault there is found by NaN and infinity only."""

    @property
    def buffers(self) -> Buffers:
        """What planted faults can strike, as far as it is known without the model."""
        known = {"input": BufferShape(bits=64, whole_numbers=True), "prefill_logits": BufferShape(bits=32)}
        if self.request.generate_tokens > 1 and self.model.kind == "decoder_transformer":
            known["decode_logits"] = BufferShape(bits=32)
        weights = BufferShape(bits=BITS[self.dtype])
        return Buffers(known=known, parameters=weights, blocks=self.model.num_layers, gradients=False)

    def value_problems(self) -> Iterator[tuple[str, str]]:
        """Checks that ``enabled`` and ``mode`` agree: one of them would be a setting that never applied."""
        enabled = self.serving.continuous_batch.enabled
        if enabled is not None and enabled != (self.mode == "continuous_batch"):
            mode = "continuous_batch" if enabled else "offline_batch"
            yield (
                "serving.continuous_batch.enabled",
                f"is {str(enabled).lower()} but mode is {self.mode}; leave it out, or set mode: {mode}",
            )


class InferenceWorkload(ConfiguredWorkload[InferenceConfig]):
    """Runs ``steps`` batches, or up to ``steps`` ticks of continuous batching.

    Ticks end early when all requests are answered. A budget that ends first is a finished trial too: metric
    ``requests_remaining`` says how many are not answered. A failed check does not end the run.
    """

    name: ClassVar[str] = "inference"
    config_class: ClassVar[type[ConfigBlock]] = InferenceConfig

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._session: InferenceSession | None = None

    @classmethod
    def check_trial(cls, config: Mapping[str, Any], shape: TrialShape) -> list[ConfigProblem]:
        """Reports planted faults that can never strike."""
        return trial_fault_problems(parse_config(InferenceConfig, config).value, config, shape)

    def setup(self) -> None:
        """Builds the model on its device.

        Raises:
            RuntimeError: An accelerator was asked for and there is none.
            ValueError: A planted fault names a rank, a step or a buffer that there is not.
        """
        from aorta.workloads.device import choose_device
        from aorta.workloads.inference_session import InferenceSession

        injector = Injector.from_config(self.settings.inject, trial=self.config.get(TRIAL_INDEX_KEY, 0))
        self._session = InferenceSession(self.settings, choose_device(self.settings.device), injector)
        injector.expect(buffers=self._session.buffers(), steps=self.steps)

    def run(self) -> WorkloadResult:
        """Serves the requests and reports times, failed checks and the checksum of all logits."""
        if self._session is None:
            raise RuntimeError("run() needs setup() first")
        return self._session.run(self.steps)

    def cleanup(self) -> None:
        """Frees the model and its cache."""
        self._session = None
