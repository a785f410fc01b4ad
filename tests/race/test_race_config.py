"""Configuration of ``race``: defaults, rules between settings, what is ignored, and what the ranks start with."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
from race_runs import tiny

from aorta.race.buffers import buffer_names
from aorta.race.config import EffectiveSizes, ReproducerConfig, effective_sizes
from aorta.workloads.race import RaceWorkload

DEFAULTS: dict[str, Any] = {
    "mode": "default",
    "warmup_iterations": 100,
    "verify_iterations": 10000,
    "stop_on_first_corruption": True,
    "log_interval": 100,
    "h2d_tensor_size": 1_000_000,
    "alltoall_tensor_size": 100_000,
    "allreduce_tensor_size": 100_000,
    "fsdp_shard_size": 100_000,
    "dtype": "bfloat16",
    "simulate_compute": True,
    "compute_type": "gemm",
    "gemm_size": 5120,
    "gemm_layers": 26,
    "model_dim": 2048,
    "num_layers": 4,
    "num_heads": 0,
    "ffn_size": 0,
    "seq_len": 512,
    "batch_size": 1,
    "include_backward_compute": True,
    "real_backward": False,
    "shared_layer_weights": False,
    "optimizer": "none",
    "optimizer_lr": 1e-4,
    "optimizer_weight_decay": 0.01,
    "optimizer_betas": (0.9, 0.999),
    "optimizer_eps": 1e-8,
    "deterministic": False,
    "deterministic_seed": 42,
    "ddp_bucketed": False,
    "reuse_buffers": True,
    "pin_memory": True,
    "h2d_prefetch": False,
    "same_stream_mode": False,
    "gpu_max_hw_queues": 4,
    "expected_local_world_size": None,
}


def problems_of(**config: Any) -> list[tuple[str, str, str]]:
    return [(p.code, p.key, p.message) for p in RaceWorkload.check_config(config)]


def test_defaults_are_the_documented_ones() -> None:
    """An empty mapping gives the values that recipes rely on."""
    settings = ReproducerConfig()
    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS


def test_sizes_that_are_0_follow_from_the_width() -> None:
    """Heads are model_dim / 128, at least one; the feed-forward network is four times as wide."""
    assert (ReproducerConfig().heads, ReproducerConfig().ffn) == (16, 8192)
    assert ReproducerConfig(model_dim=64).heads == 1
    assert (ReproducerConfig(num_heads=8, ffn_size=5).heads, ReproducerConfig(num_heads=8, ffn_size=5).ffn) == (8, 5)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"mode": "fsdp", "reuse_buffers": False}, "reuse_buffers"),
        ({"mode": "fsdp", "same_stream_mode": True}, "same_stream_mode"),
        ({"shared_layer_weights": True}, "shared_layer_weights"),
        ({"compute_type": "transformer", "model_dim": 10, "num_heads": 3}, "num_heads"),
        ({"optimizer_betas": [0.9, 1.0]}, "optimizer_betas"),
        ({"mode": "pipeline"}, "mode"),
        ({"verify_iterations": 0}, "verify_iterations"),
        ({"inject": {"kind": "bitflip"}}, "inject.buffer"),
    ],
)
def test_settings_that_cannot_be_are_refused(config: dict[str, Any], key: str) -> None:
    """``check_config`` names the key before anything runs, and the constructor refuses the same."""
    ((code, found, message),) = problems_of(**config)
    assert code == "bad_config_value"
    assert found.startswith(key.partition(".")[0])
    assert message
    with pytest.raises(ValueError, match=r"workload_config\."):
        RaceWorkload(config)


def test_unknown_key_is_a_warning_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """A key that is no setting is ignored, and the run's log says so."""
    with caplog.at_level(logging.WARNING):
        RaceWorkload({"steps": 1, "fsdp_shard_sise": 5})
    assert [r.message for r in caplog.records] == ["race: ignoring unknown workload_config key 'fsdp_shard_sise'"]
    ((code, _, message),) = problems_of(fsdp_shard_sise=5)
    assert (code, "did you mean 'fsdp_shard_size'?" in message) == ("unknown_config_key", True)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"mode": "fsdp", "h2d_prefetch": True}, "h2d_prefetch"),
        ({"mode": "ddp", "alltoall_tensor_size": 8}, "alltoall_tensor_size"),
        ({"mode": "default", "ddp_bucketed": True}, "ddp_bucketed"),
        ({"real_backward": True, "simulate_compute": False}, "real_backward"),
    ],
)
def test_setting_that_does_nothing_is_a_warning(
    config: dict[str, Any], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A lever that is not connected is named, in the plan and in the run's log."""
    assert [(code, found) for code, found, _ in problems_of(**config)] == [("unknown_config_key", key)]
    with caplog.at_level(logging.WARNING):
        RaceWorkload(config)
    assert [key in r.message for r in caplog.records] == [True]


def test_effective_sizes_fit_the_world() -> None:
    """Sizes become multiples of ranks and buckets, and a shard holds its part of a layer."""
    settings = ReproducerConfig(mode="ddp", ddp_bucketed=True, gemm_layers=3, allreduce_tensor_size=10)
    assert effective_sizes(settings, 8).allreduce_tensor_size == 12
    assert effective_sizes(ReproducerConfig(alltoall_tensor_size=10), 4).alltoall_tensor_size == 12
    transformer = ReproducerConfig(mode="fsdp", compute_type="transformer", model_dim=512, fsdp_shard_size=250_000)
    weights = 12 * 512**2
    assert effective_sizes(transformer, 2).fsdp_shard_size == weights // 2
    assert effective_sizes(transformer, 16) == EffectiveSizes(
        alltoall_tensor_size=100_000, allreduce_tensor_size=100_000, fsdp_shard_size=250_000, buckets=1
    )


def test_queues_are_set_before_the_process_starts() -> None:
    """The ranks' environment gets the queue limit, and a fixed workspace where determinism needs it."""
    assert RaceWorkload.process_env({}) == {"GPU_MAX_HW_QUEUES": "4"}
    assert RaceWorkload.process_env({"gpu_max_hw_queues": 2, "deterministic": True}) == {
        "GPU_MAX_HW_QUEUES": "2",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    assert RaceWorkload.process_env({"gpu_max_hw_queues": "two"}) == {}


def test_checking_a_configuration_needs_no_torch() -> None:
    """The engine reads traits, settings and buffer names in a process that stays light."""
    code = (
        "import sys\n"
        "from aorta.workloads.race import RaceWorkload\n"
        "import aorta.race.buffers\n"
        "assert RaceWorkload.check_config({'x': 1})\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_class_attributes_that_the_engine_reads() -> None:
    """race is distributed, needs two ranks and a process of its own."""
    assert (RaceWorkload.launch_mode, RaceWorkload.min_world_size) == ("distributed", 2)
    assert (RaceWorkload.isolation_required, RaceWorkload.isolation_supported) == (True, {"process"})


def test_one_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """setup() without a launcher says how to start the ranks."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPU_MAX_HW_QUEUES", "4")
    workload = RaceWorkload(tiny("fsdp"))
    with pytest.raises(RuntimeError, match="at least 2 ranks and WORLD_SIZE is 1"):
        workload.setup()
    workload.cleanup()


def test_buffer_names_follow_the_settings() -> None:
    """A trial's buffers are those of its mode and switches."""
    assert buffer_names(ReproducerConfig()) == ("h2d", "all_to_all", "all_reduce")
    assert buffer_names(ReproducerConfig(mode="fsdp", gemm_layers=1, optimizer="sgd")) == (
        "layer0.all_gather",
        "layer0.reduce_scatter",
        "layer0.optimizer_param",
    )
