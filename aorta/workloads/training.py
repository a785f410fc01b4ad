"""``training``: a short training run with synthetic data, data-parallel over the trial's ranks.

The model is a language model that learns random tokens. Every rank checks its own loss, gradients and logits at
each step; a failure on any rank fails the trial.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from aorta.workloads.base import ConfigProblem, TrialShape, WorkloadResult
from aorta.workloads.config import NOT_NEGATIVE, POSITIVE, ConfigBlock, parse_config
from aorta.workloads.configured import DistributedWorkload
from aorta.workloads.dtypes import DTYPE_FIELD, DtypeName
from aorta.workloads.inject import TRIAL_INDEX_KEY, FaultConfig, Injector
from aorta.workloads.inject_check import Buffers, BufferShape, trial_fault_problems

if TYPE_CHECKING:
    from aorta.workloads.training_session import TrainingSession


@dataclass(frozen=True, kw_only=True)
class TrainingModelConfig(ConfigBlock):
    """``workload_config.model`` of ``training``."""

    kind: Literal["mlp", "transformer", "moe_transformer"] = "transformer"
    """``mlp`` predicts from each token alone; the transformers attend causally; ``moe_`` has experts."""
    hidden_size: int = field(default=256, metadata=POSITIVE)
    """Width of the residual stream."""
    num_layers: int = field(default=2, metadata=POSITIVE)
    """Number of blocks."""
    num_heads: int = field(default=4, metadata=POSITIVE)
    """Attention heads of the transformers; divides ``hidden_size``. Not used by ``mlp``."""
    ffn_size: int = field(default=1024, metadata=POSITIVE)
    """Inner width of a feed-forward network."""
    vocab_size: int = field(default=32000, metadata=POSITIVE)
    """Number of token ids."""
    num_experts: int = field(default=4, metadata=POSITIVE)
    """Experts a block, each token to one of them. Used by ``moe_transformer`` only."""

    def value_problems(self) -> Iterator[tuple[str, str]]:
        """Checks that the heads divide the width."""
        if self.kind != "mlp" and self.hidden_size % self.num_heads:
            yield "num_heads", f"is {self.num_heads}; use a divisor of hidden_size, which is {self.hidden_size}"


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(ConfigBlock):
    """``workload_config.optimizer`` of ``training``."""

    kind: Literal["adamw"] = "adamw"
    """Update rule."""
    lr: float = field(default=1e-4, metadata=NOT_NEGATIVE)
    """Learning rate, constant."""
    weight_decay: float = field(default=0.01, metadata=NOT_NEGATIVE)
    """Decoupled weight decay."""
    betas: tuple[float, float] = field(default=(0.9, 0.98), metadata=NOT_NEGATIVE)
    """Decay rates of the running means of the gradient and of its square, each below 1."""
    eps: float = field(default=1e-8, metadata=NOT_NEGATIVE)
    """Added to the denominator."""

    def value_problems(self) -> Iterator[tuple[str, str]]:
        """Checks that the running means decay."""
        if max(self.betas) >= 1:
            yield "betas", f"is {list(self.betas)}; use two numbers from 0 to below 1"


@dataclass(frozen=True, kw_only=True)
class TrainingChecksConfig(ConfigBlock):
    """``workload_config.checks`` of ``training``; a check that is false is off.

    The checks named after NaN also catch infinity: an infinite loss or gradient is a NaN one update later.
    """

    fail_on_nan_loss: bool = True
    """The loss of each step is a finite number."""
    fail_on_nan_grad: bool = True
    """Every gradient is finite after the reduction over ranks, before the update."""
    fail_on_nonfinite_output: bool = True
    """All logits are finite."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(ConfigBlock):
    """``workload_config`` of ``training``."""

    parallelism: Literal["fsdp", "ddp"] = "fsdp"
    """``fsdp`` shards parameters, gradients and optimiser state over the ranks (FSDP2); ``ddp`` replicates them."""
    seed: int = field(default=1234, metadata=NOT_NEGATIVE)
    """Fixes the initial parameters (the same on every rank) and the data (different on each)."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """``cuda`` means ROCm too, and fails where there is none; ``auto`` falls back to the CPU."""
    dtype: DtypeName = field(default="bfloat16", metadata=DTYPE_FIELD)
    """What the model computes in. Parameters and optimiser state stay float32."""
    batch_size: int = field(default=2, metadata=POSITIVE)
    """Sequences a rank and step."""
    seq_len: int = field(default=128, metadata=POSITIVE)
    """Tokens a sequence."""
    warmup_steps: int = field(default=1, metadata=NOT_NEGATIVE)
    """Steps before the ``steps`` that count: full training steps, checked, but not timed and not counted."""
    model: TrainingModelConfig = field(default_factory=TrainingModelConfig)
    """Shape of the model."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Update rule."""
    checks: TrainingChecksConfig = field(default_factory=TrainingChecksConfig)
    """What fails a trial."""
    inject: tuple[FaultConfig, ...] = ()
    """Planted faults, in ``input`` (token ids), ``logits``, ``loss``, parameters by name and ``<parameter>.grad``."""

    @property
    def buffers(self) -> Buffers:
        """What planted faults can strike, as far as it is known without the model."""
        tokens = self.batch_size * self.seq_len
        known = {
            "input": BufferShape(bits=64, elements=tokens, whole_numbers=True),
            "logits": BufferShape(bits=32, elements=tokens * self.model.vocab_size),
            "loss": BufferShape(bits=32, elements=1),
        }
        return Buffers(known=known, parameters=BufferShape(bits=32), blocks=self.model.num_layers)


class TrainingWorkload(DistributedWorkload[TrainingConfig]):
    """Trains for ``warmup_steps + steps`` steps and checks every one of them.

    A failed check does not end the run: the trial's step times stay comparable with those of a trial that
    passed, and the record shows how the fault spread. Alone (no WORLD_SIZE, or 1) the process group has one
    rank and needs no port.
    """

    name: ClassVar[str] = "training"
    config_class: ClassVar[type[ConfigBlock]] = TrainingConfig
    min_world_size: ClassVar[int] = 1

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._session: TrainingSession | None = None

    @classmethod
    def check_trial(cls, config: Mapping[str, Any], shape: TrialShape) -> list[ConfigProblem]:
        """Reports planted faults that can never strike."""
        return trial_fault_problems(parse_config(TrainingConfig, config).value, config, shape)

    def setup(self) -> None:
        """Joins the process group and builds the model, on this rank's device.

        Raises:
            RuntimeError: The launcher's variables are incomplete, or the device is not there.
            ValueError: A planted fault names a rank, a step or a buffer that there is not.
        """
        from aorta.workloads.device import choose_device
        from aorta.workloads.process_group import RankInfo, join_process_group
        from aorta.workloads.training_session import TrainingSession

        info = RankInfo.from_environment(os.environ)
        device = choose_device(self.settings.device, info.local_rank)
        injector = Injector.from_config(
            self.settings.inject,
            rank=info.rank,
            world_size=info.world_size,
            trial=self.config.get(TRIAL_INDEX_KEY, 0),
        )
        join_process_group(info, device)
        self._session = TrainingSession(self.settings, info, device, injector)
        injector.expect(buffers=self._session.buffers(), steps=self.steps)

    def run(self) -> WorkloadResult:
        """Trains; every rank returns the same verdict and failures, with its own step times."""
        if self._session is None:
            raise RuntimeError("run() needs setup() first")
        return self._session.train(self.steps)

    def cleanup(self) -> None:
        """Leaves the process group and frees the model; also after a setup() that failed half-way."""
        self._session = None
        super().cleanup()
