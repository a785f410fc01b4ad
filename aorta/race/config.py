"""Settings of the race reproducer. Standard library only: configurations are checked in a process that stays light."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aorta.workloads.base import ConfigProblem
from aorta.workloads.config import NOT_NEGATIVE, POSITIVE, parse_config
from aorta.workloads.dtypes import DTYPE_FIELD, DtypeName
from aorta.workloads.inject import InjectBlock

_HEAD_SIZE = 128

# Settings that only some modes read; setting one elsewhere is a lever that was never pulled.
_ONLY_IN: Mapping[str, tuple[str, ...]] = {
    "h2d_tensor_size": ("default", "ddp"),
    "h2d_prefetch": ("default", "ddp"),
    "pin_memory": ("default", "ddp"),
    "alltoall_tensor_size": ("default",),
    "allreduce_tensor_size": ("default", "ddp"),
    "ddp_bucketed": ("ddp",),
    "fsdp_shard_size": ("fsdp",),
}


@dataclass(frozen=True, kw_only=True)
class ReproducerConfig(InjectBlock):
    """``workload_config`` of ``race``. Sizes are in elements.

    The number of iterations is ``verify_iterations``, not the recipe's ``steps``.
    """

    mode: Literal["default", "ddp", "fsdp"] = "default"
    """Communication pattern of an iteration; ``docs/race.md`` describes the three."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """``cuda`` means ROCm too, and fails where there is none; ``auto`` falls back to the CPU."""
    warmup_iterations: int = field(default=100, metadata=NOT_NEGATIVE)
    """Iterations before the verified ones: the same communication, not verified and not timed."""
    verify_iterations: int = field(default=10000, metadata=POSITIVE)
    """Iterations whose every buffer is verified and whose time counts."""
    stop_on_first_corruption: bool = True
    """Ends the trial, on all ranks, one or two iterations after the first corruption on any rank."""
    log_interval: int = field(default=100, metadata=NOT_NEGATIVE)
    """Verified iterations between two progress lines of rank 0; 0 for none."""
    h2d_tensor_size: int = field(default=1_000_000, metadata=POSITIVE)
    """Tensor that is copied from the host to the device."""
    alltoall_tensor_size: int = field(default=100_000, metadata=POSITIVE)
    """Tensor that is exchanged with all ranks; rounded up to a multiple of their number."""
    allreduce_tensor_size: int = field(default=100_000, metadata=POSITIVE)
    """Tensor that is summed over all ranks; in ``ddp`` the gradient, rounded up to equal buckets."""
    fsdp_shard_size: int = field(default=100_000, metadata=POSITIVE)
    """One rank's part of one layer; raised to what the transformer layer needs if it is too small for it."""
    dtype: DtypeName = field(default="bfloat16", metadata=DTYPE_FIELD)
    """Number format of all buffers but those of the reduce-scatter, which are float32."""
    simulate_compute: bool = True
    """Computes between the communications; false leaves the bare communication pattern."""
    compute_type: Literal["gemm", "transformer"] = "gemm"
    """``gemm``: one square matrix product a layer; ``transformer``: attention and feed-forward network a layer."""
    gemm_size: int = field(default=5120, metadata=POSITIVE)
    """Rows and columns of the matrices of ``gemm``."""
    gemm_layers: int = field(default=26, metadata=POSITIVE)
    """Number of layers with ``compute_type: gemm``."""
    model_dim: int = field(default=2048, metadata=POSITIVE)
    """Width of the transformer."""
    num_layers: int = field(default=4, metadata=POSITIVE)
    """Number of layers with ``compute_type: transformer``."""
    num_heads: int = field(default=0, metadata=NOT_NEGATIVE)
    """Attention heads; 0 means ``model_dim / 128``, at least 1."""
    ffn_size: int = field(default=0, metadata=NOT_NEGATIVE)
    """Inner width of the feed-forward network; 0 means ``4 * model_dim``."""
    seq_len: int = field(default=512, metadata=POSITIVE)
    """Tokens a sequence of the transformer."""
    batch_size: int = field(default=1, metadata=POSITIVE)
    """Sequences of the transformer."""
    include_backward_compute: bool = True
    """Computes as much again as a backward pass would."""
    real_backward: bool = False
    """Runs autograd's backward pass instead of a stand-in; in ``fsdp`` each layer is gathered once more for it."""
    shared_layer_weights: bool = False
    """Gives every layer the same weights and input, so that all must compute the same bits, which is verified."""
    optimizer: Literal["none", "adamw", "sgd", "shampoo"] = "none"
    """Update rule that consumes the reduced gradients; its result is verified against a second one."""
    optimizer_lr: float = field(default=1e-4, metadata=NOT_NEGATIVE)
    """Learning rate."""
    optimizer_weight_decay: float = field(default=0.01, metadata=NOT_NEGATIVE)
    """Decoupled weight decay."""
    optimizer_betas: tuple[float, float] = field(default=(0.9, 0.999), metadata=NOT_NEGATIVE)
    """Decay rates of the running means, each below 1. ``sgd`` takes the first as its momentum."""
    optimizer_eps: float = field(default=1e-8, metadata=NOT_NEGATIVE)
    """Keeps denominators and matrix roots away from 0."""
    deterministic: bool = False
    """Asks torch for deterministic algorithms and seeds the compute inputs with ``deterministic_seed``."""
    deterministic_seed: int = field(default=42, metadata=NOT_NEGATIVE)
    """Seed of ``deterministic``; without it each trial draws one and records it."""
    ddp_bucketed: bool = False
    """``ddp``: reduces a bucket a layer while the backward pass goes on, instead of all gradients after it."""
    reuse_buffers: bool = True
    """One set of communication buffers; false alternates between two."""
    pin_memory: bool = True
    """Host tensors lie in page-locked memory, where a device has it."""
    h2d_prefetch: bool = False
    """Copies the next iteration's tensor to the device during this one."""
    same_stream_mode: bool = False
    """Puts copies, computation and communication on one stream: no overlap that could race."""
    gpu_max_hw_queues: int = field(default=4, metadata=POSITIVE)
    """``GPU_MAX_HW_QUEUES`` of the ranks, set before they start unless the cell sets the variable."""
    expected_local_world_size: int | None = field(default=None, metadata=POSITIVE)
    """Ranks a host that the recipe is made for; another number is recorded, and warned about before anything runs."""

    def value_problems(self) -> Iterator[tuple[str, str]]:
        """Checks the settings against each other."""
        if self.mode == "fsdp" and not self.reuse_buffers:
            yield "reuse_buffers", "is false, which mode fsdp cannot do: its buffers alternate by layer; use true"
        if self.mode == "fsdp" and self.same_stream_mode:
            yield "same_stream_mode", "is true, which mode fsdp cannot do: it overlaps by design; use mode default"
        if self.shared_layer_weights and self.compute_type != "transformer":
            yield "shared_layer_weights", f"is true with compute_type {self.compute_type}; use compute_type transformer"
        if self.compute_type == "transformer" and self.model_dim % self.heads:
            yield "num_heads", f"is {self.heads}; use a divisor of model_dim, which is {self.model_dim}"
        if max(self.optimizer_betas) >= 1:
            yield "optimizer_betas", f"is {list(self.optimizer_betas)}; use two numbers from 0 to below 1"

    @property
    def heads(self) -> int:
        """Attention heads, the default resolved."""
        return self.num_heads or max(1, self.model_dim // _HEAD_SIZE)

    @property
    def ffn(self) -> int:
        """Inner width of the feed-forward network, the default resolved."""
        return self.ffn_size or 4 * self.model_dim

    @property
    def layers(self) -> int:
        """Number of layers, of whichever compute type."""
        return self.num_layers if self.compute_type == "transformer" else self.gemm_layers

    @property
    def layer_parameters(self) -> int:
        """Weights of one transformer layer."""
        return 4 * self.model_dim**2 + 2 * self.model_dim * self.ffn

    @property
    def runs_backward(self) -> bool:
        """Whether autograd's backward pass runs."""
        return self.simulate_compute and self.real_backward


@dataclass(frozen=True, kw_only=True)
class EffectiveSizes:
    """Sizes in elements as a world of a given size needs them.

    Attributes:
        alltoall_tensor_size: A multiple of the number of ranks.
        allreduce_tensor_size: A multiple of the number of buckets.
        fsdp_shard_size: Large enough that all shards together hold a layer's weights.
        buckets: Number of gradient buckets of ``ddp``; 1 unless ``ddp_bucketed``.
    """

    alltoall_tensor_size: int
    allreduce_tensor_size: int
    fsdp_shard_size: int
    buckets: int


def effective_sizes(settings: ReproducerConfig, world_size: int) -> EffectiveSizes:
    """Returns the sizes that a trial with so many ranks uses."""
    buckets = settings.layers if settings.mode == "ddp" and settings.ddp_bucketed else 1
    shard = settings.fsdp_shard_size
    if settings.simulate_compute and settings.compute_type == "transformer":
        shard = max(shard, _ceil_div(settings.layer_parameters, world_size))
    return EffectiveSizes(
        alltoall_tensor_size=_ceil_div(settings.alltoall_tensor_size, world_size) * world_size,
        allreduce_tensor_size=_ceil_div(settings.allreduce_tensor_size, buckets) * buckets,
        fsdp_shard_size=shard,
        buckets=buckets,
    )


def race_config_problems(config: Mapping[str, Any]) -> list[ConfigProblem]:
    """Returns what is wrong with a merged ``workload_config``, and the keys that its mode does not read."""
    parsed = parse_config(ReproducerConfig, config)
    problems = list(parsed.problems)
    if parsed.value is not None:
        problems += [
            ConfigProblem(key=key, message=f"{key} {why}, so it would be ignored")
            for key, why in unused_keys(parsed.value, config)
        ]
    return sorted(problems, key=lambda problem: problem.key)


def unused_keys(settings: ReproducerConfig, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (key, reason) of keys of the raw configuration that have no effect with these settings."""
    for key, modes in _ONLY_IN.items():
        if key in config and settings.mode not in modes:
            yield key, f"is not used in mode {settings.mode}"
    if settings.real_backward and not settings.simulate_compute:
        yield "real_backward", "is true but simulate_compute is false"


def process_environment(settings: ReproducerConfig) -> dict[str, str]:
    """Returns the variables that a rank's process needs at its start, before anything that reads them loads."""
    variables = {"GPU_MAX_HW_QUEUES": str(settings.gpu_max_hw_queues)}
    if settings.deterministic:
        # cuBLAS is reproducible only with a workspace of a fixed size.
        variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return variables


def _ceil_div(number: int, by: int) -> int:
    return -(-number // by)
