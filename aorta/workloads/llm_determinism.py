"""``llm_determinism``: one training step, replayed twice from the same snapshot, must give the same bits.

A transformer of one repeated block (norm, attention, gated feed-forward) is trained for one step, set back to where
it was (parameters, buffers, optimiser, every kind of random numbers) and trained for that step again. The bits of
each block's input and output, of their gradients, of the loss, the logits, each parameter's gradient and each updated
parameter are compared.
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
    from aorta.llm_determinism.session import DeterminismSession


@dataclass(frozen=True, kw_only=True)
class LlmDeterminismConfig(ConfigBlock):
    """``workload_config`` of ``llm_determinism``."""

    num_layers: int = field(default=24, metadata=POSITIVE)
    """Number of blocks."""
    hidden_size: int = field(default=2048, metadata=POSITIVE)
    """Width of the residual stream."""
    ffn_size: int = field(default=5632, metadata=POSITIVE)
    """Inner width of a feed-forward network."""
    num_heads: int = field(default=16, metadata=POSITIVE)
    """Attention heads; divides ``hidden_size``."""
    vocab_size: int = field(default=32000, metadata=POSITIVE)
    """Number of token ids."""
    seq_len: int = field(default=512, metadata=POSITIVE)
    """Tokens a sequence."""
    batch_size: int = field(default=1, metadata=POSITIVE)
    """Sequences a rank."""
    num_experts: int = field(default=1, metadata=POSITIVE)
    """Feed-forward networks a block; from 2 on each token goes to the one its router scores highest."""
    dtype: DtypeName = field(default="bfloat16", metadata=DTYPE_FIELD)
    """What the model computes in. Parameters, gradients and optimiser state stay float32."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """``cuda`` means ROCm too, and fails where there is none; ``auto`` falls back to the CPU."""
    seed: int = field(default=1234, metadata=NOT_NEGATIVE)
    """Fixes the initial parameters (the same on every rank) and the tokens (different on each)."""
    warmup_steps: int = field(default=1, metadata=NOT_NEGATIVE)
    """Training steps before the snapshot: not compared. They load the kernels and fill the optimiser's state; with 0
    the first replay is also the first use of each kernel."""
    checksum_mode: Literal["per_rank", "global"] = "per_rank"
    """Compare each rank's checksums, or one checksum a tensor that is joined over all ranks."""
    capture_dir: str | None = None
    """Folder for ``rank<NNN>.jsonl`` with the checksums of every replay; ``{trial}`` stands for the trial's number.
    Without it a later trial replaces the files of an earlier one."""
    model_label: str | None = None
    """Name of the model in the metrics; by default made of its sizes, such as ``24L-2048d``."""
    inject: tuple[FaultConfig, ...] = ()
    """Planted faults, in the second replay of a step only; ``docs/llm-determinism.md`` lists the buffers."""

    @property
    def buffers(self) -> Buffers:
        """What planted faults can strike, as far as it is known without the model."""
        known = {
            "input": BufferShape(bits=64, whole_numbers=True),
            "logits": BufferShape(bits=32),
            "loss": BufferShape(bits=32, elements=1),
        }
        return Buffers(known=known, parameters=BufferShape(bits=32), blocks=self.num_layers)

    def value_problems(self) -> Iterator[tuple[str, str]]:
        """Checks that the heads divide the width."""
        if self.hidden_size % self.num_heads:
            yield "num_heads", f"is {self.num_heads}; use a divisor of hidden_size, which is {self.hidden_size}"

    @property
    def label(self) -> str:
        """``model_label``, or one made of the sizes."""
        experts = f"-{self.num_experts}e" if self.num_experts > 1 else ""
        return self.model_label or f"{self.num_layers}L-{self.hidden_size}d{experts}"


class LlmDeterminismWorkload(DistributedWorkload[LlmDeterminismConfig]):
    """Replays the same training step ``2 * steps`` times, in pairs, and fails if any two runs differ in a bit.

    Every pair starts from the same snapshot, so with ``steps`` above 1 all runs should agree: the metric
    ``distinct_outcomes`` counts how many different results there were.
    """

    name: ClassVar[str] = "llm_determinism"
    config_class: ClassVar[type[ConfigBlock]] = LlmDeterminismConfig
    min_world_size: ClassVar[int] = 1

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._session: DeterminismSession | None = None

    @classmethod
    def check_trial(cls, config: Mapping[str, Any], shape: TrialShape) -> list[ConfigProblem]:
        """Reports planted faults that can never strike."""
        return trial_fault_problems(parse_config(LlmDeterminismConfig, config).value, config, shape)

    def setup(self) -> None:
        """Joins the process group and builds the model, on this rank's device.

        Raises:
            OSError: The capture file cannot be written.
            RuntimeError: The launcher's variables are incomplete, or the device is not there.
            ValueError: A planted fault names a rank, a step or a buffer that there is not.
        """
        from aorta.llm_determinism.session import DeterminismSession
        from aorta.workloads.device import choose_device
        from aorta.workloads.process_group import RankInfo, join_process_group

        info = RankInfo.from_environment(os.environ)
        trial = int(self.config.get(TRIAL_INDEX_KEY, 0))
        injector = Injector.from_config(self.settings.inject, rank=info.rank, world_size=info.world_size, trial=trial)
        device = choose_device(self.settings.device, info.local_rank)
        join_process_group(info, device)
        self._session = DeterminismSession(self.settings, info, device, injector, trial=trial)
        injector.expect(buffers=self._session.buffers(), steps=self.steps)

    def run(self) -> WorkloadResult:
        """Replays and compares; every rank returns the same verdict and failures, with its own step times."""
        if self._session is None:
            raise RuntimeError("run() needs setup() first")
        return self._session.run(self.steps)

    def cleanup(self) -> None:
        """Closes the capture file, leaves the process group and frees the model."""
        if self._session is not None:
            self._session.close()
        self._session = None
        super().cleanup()
