"""Configuration of the workloads: defaults, unknown keys, bad values."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from aorta.workloads.config import ConfigBlock, load_config, parse_config, read_steps
from aorta.workloads.gpu_smoke import GpuSmokeConfig, GpuSmokeWorkload
from aorta.workloads.inference import InferenceConfig, InferenceWorkload
from aorta.workloads.training import OptimizerConfig, TrainingConfig, TrainingModelConfig, TrainingWorkload


def problem_of(block: Any, config: dict[str, Any]) -> tuple[str, str, str]:
    """Returns the only problem of a configuration as (code, key, message)."""
    (problem,) = parse_config(block, config).problems
    return problem.code, problem.key, problem.message


def test_reading_configurations_needs_no_torch() -> None:
    """Importing the three modules and checking a configuration leaves torch and numpy unimported."""
    code = (
        "import sys\n"
        "from aorta.workloads.training import TrainingWorkload as T\n"
        "from aorta.workloads.inference import InferenceWorkload as I\n"
        "from aorta.workloads.gpu_smoke import GpuSmokeWorkload as G\n"
        "assert all(w.check_config({'x': 1}) for w in (T, I, G))\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_training_defaults() -> None:
    """An empty mapping gives the documented training defaults."""
    config = parse_config(TrainingConfig, {}).value
    assert config == TrainingConfig()
    assert config is not None
    assert (config.parallelism, config.seed, config.device, config.batch_size) == ("fsdp", 1234, "auto", 2)
    assert (config.seq_len, config.warmup_steps) == (128, 1)
    assert config.model == TrainingModelConfig(
        kind="transformer",
        hidden_size=256,
        num_layers=2,
        num_heads=4,
        ffn_size=1024,
        vocab_size=32000,
        num_experts=4,
    )
    assert config.optimizer == OptimizerConfig(kind="adamw", lr=1e-4, weight_decay=0.01, betas=(0.9, 0.98), eps=1e-8)


def test_inference_defaults() -> None:
    """An empty mapping gives the documented inference defaults."""
    config = parse_config(InferenceConfig, {}).value
    assert config is not None
    assert (config.mode, config.warmup_steps) == ("offline_batch", 1)
    assert (config.request.batch_size, config.request.prompt_len, config.request.generate_tokens) == (4, 128, 32)
    m = config.model
    assert m.kind == "decoder_transformer"
    assert (m.hidden_size, m.num_layers, m.num_heads, m.ffn_size, m.vocab_size, m.num_experts) == (
        512,
        4,
        8,
        2048,
        32000,
        1,
    )
    assert config.serving.kv_cache is True
    assert config.serving.continuous_batch.max_active_requests == 8


def test_gpu_smoke_defaults() -> None:
    """An empty mapping gives 8 elements of float32."""
    assert parse_config(GpuSmokeConfig, {}).value == GpuSmokeConfig(n=8, dtype="float32")


def test_engine_keys_are_not_unknown() -> None:
    """The engine's ``steps`` and ``_aorta_`` keys are no business of a workload's configuration."""
    assert parse_config(TrainingConfig, {"steps": 4, "_aorta_environment": {}}).problems == []


@pytest.mark.parametrize(
    ("config", "key", "meant"),
    [
        ({"model": {"hiden_size": 8}}, "model.hiden_size", "model.hidden_size"),
        ({"hidden_size": 8}, "hidden_size", "model.hidden_size"),
        ({"sedd": 8}, "sedd", "seed"),
        ({"learn_rate": 8, "optimizer": {"l": 1}}, None, None),
    ],
)
def test_unknown_key_names_the_nearest_known_one(config: dict[str, Any], key: str | None, meant: str | None) -> None:
    """A misspelt or misplaced key is reported by its dotted path with what was probably meant."""
    parsed = parse_config(TrainingConfig, config)
    assert parsed.value is not None
    assert {p.code for p in parsed.problems} == {"unknown_config_key"}
    if key is None:
        assert [p.key for p in parsed.problems] == ["learn_rate", "optimizer.l"]
    else:
        assert [p.key for p in parsed.problems] == [key]
        assert f"did you mean '{meant}'?" in parsed.problems[0].message


def test_unknown_key_far_from_all_others_gets_no_guess() -> None:
    """No suggestion is better than a wild one."""
    assert "did you mean" not in problem_of(TrainingConfig, {"zzzzqqqq": 1})[2]


@pytest.mark.parametrize(
    ("config", "key", "words"),
    [
        ({"model": {"hidden_size": "big"}}, "model.hidden_size", "is 'big' (str); use a whole number"),
        ({"model": {"hidden_size": 0}}, "model.hidden_size", "is 0; use a whole number of at least 1"),
        ({"model": {"hidden_size": True}}, "model.hidden_size", "is True (bool); use a whole number"),
        ({"model": {"hidden_size": 8.0}}, "model.hidden_size", "is 8.0 (float); use a whole number"),
        ({"model": {"hidden_size": 10}}, "model.num_heads", "use a divisor of hidden_size, which is 10"),
        ({"model": {"kind": "transfomer"}}, "model.kind", "did you mean transformer?"),
        ({"model": None}, "model", "is None; use a mapping"),
        ({"optimizer": {"lr": "1e-4"}}, "optimizer.lr", "write 1.0e-4, not 1e-4"),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr", "use a finite number"),
        ({"optimizer": {"lr": -1}}, "optimizer.lr", "of at least 0"),
        ({"optimizer": {"betas": [0.9]}}, "optimizer.betas", "use a list of 2 values"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, "optimizer.betas", "from 0 to below 1"),
        ({"checks": {"fail_on_nan_loss": 1}}, "checks.fail_on_nan_loss", "is 1 (int); use true or false"),
        ({"dtype": "int8"}, "dtype", "use bfloat16 or float16 or float32"),
        ({"parallelism": "tp"}, "parallelism", "use fsdp or ddp"),
        ({"warmup_steps": -1}, "warmup_steps", "of at least 0"),
    ],
)
def test_bad_value_is_named_with_its_remedy(config: dict[str, Any], key: str, words: str) -> None:
    """A value of the wrong type or size is reported with its path, the value and what to write."""
    code, found_key, message = problem_of(TrainingConfig, config)
    assert (code, found_key) == ("bad_config_value", key)
    assert message.startswith(key)
    assert words in message


def test_all_problems_come_at_once() -> None:
    """Problems in several blocks are collected, sorted by key."""
    config = {"seed": "x", "model": {"hidden_size": 0, "what": 1, "num_layers": 0}, "optimizer": {"lr": "a"}}
    assert [p.key for p in parse_config(TrainingConfig, config).problems] == [
        "model.hidden_size",
        "model.num_layers",
        "model.what",
        "optimizer.lr",
        "seed",
    ]


@pytest.mark.parametrize(
    ("short", "full"),
    [("bf16", "bfloat16"), ("fp16", "float16"), ("half", "float16"), ("fp32", "float32"), ("float", "float32")],
)
def test_dtype_short_forms(short: str, full: str) -> None:
    """A short form of a dtype means the full name."""
    config = parse_config(GpuSmokeConfig, {"dtype": short}).value
    assert config is not None
    assert config.dtype == full


def test_whole_number_is_accepted_for_a_number() -> None:
    """``lr: 1`` is a float."""
    config = parse_config(TrainingConfig, {"optimizer": {"lr": 1}}).value
    assert config is not None
    assert (config.optimizer.lr, type(config.optimizer.lr)) == (1.0, float)


@pytest.mark.parametrize(("enabled", "mode"), [(True, "offline_batch"), (False, "continuous_batch")])
def test_contradicting_switches_are_refused(enabled: bool, mode: str) -> None:
    """``enabled`` cannot silently lose against ``mode``."""
    config = {"mode": mode, "serving": {"continuous_batch": {"enabled": enabled}}}
    code, key, message = problem_of(InferenceConfig, config)
    assert (code, key) == ("bad_config_value", "serving.continuous_batch.enabled")
    assert f"is {str(enabled).lower()} but mode is {mode}" in message


def test_constructor_names_the_bad_value() -> None:
    """Constructing a workload from an unusable configuration is a ValueError that names the full path."""
    with pytest.raises(ValueError, match=r"workload_config\.model\.hidden_size is 'big'"):
        TrainingWorkload({"steps": 1, "model": {"hidden_size": "big"}})


def test_unknown_key_is_a_warning_at_run_time(caplog: pytest.LogCaptureFixture) -> None:
    """The trial goes on and says which key it ignores."""
    with caplog.at_level(logging.WARNING):
        load_config(TrainingConfig, {"model": {"x": 1}}, "training")
    assert [r.message for r in caplog.records] == ["training: ignoring unknown workload_config key 'model.x'"]


def test_warning_reaches_stderr_without_logging_set_up() -> None:
    """A worker that configures no logging shows the warning on stderr."""
    code = "from aorta.workloads.gpu_smoke import GpuSmokeWorkload; GpuSmokeWorkload({'steps': 1, 'x': 1})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "gpu_smoke: ignoring unknown workload_config key 'x'\n"


@pytest.mark.parametrize("workload", [GpuSmokeWorkload, TrainingWorkload, InferenceWorkload])
def test_check_config_reports_what_the_constructor_refuses(workload: Any) -> None:
    """``check_config`` and the constructor agree on what is bad."""
    config = {"device": "tpu"}
    assert [p.code for p in workload.check_config(config)] == ["bad_config_value"]
    with pytest.raises(ValueError, match=r"workload_config\.device"):
        workload(config)


@pytest.mark.parametrize("steps", [0, -1, True, "4", 2.0])
def test_steps_must_be_a_positive_whole_number(steps: Any) -> None:
    """Anything else is refused with the value."""
    with pytest.raises(ValueError, match="steps is"):
        read_steps({"steps": steps})


def test_class_attributes_that_the_engine_reads() -> None:
    """Launch mode and isolation are those of the documentation."""
    assert (TrainingWorkload.launch_mode, TrainingWorkload.min_world_size) == ("distributed", 1)
    assert InferenceWorkload.launch_mode == GpuSmokeWorkload.launch_mode == "single_process"
    for workload in (TrainingWorkload, InferenceWorkload, GpuSmokeWorkload):
        assert workload.isolation_default == "process"
        assert workload.isolation_supported == {"process", "in_process"}


@dataclass(frozen=True, kw_only=True)
class Stop(ConfigBlock):
    """A block with a required field and a second name for another one."""

    key_aliases = {"town": "city"}  # noqa: RUF012

    number: int
    city: str = "Ulm"


@dataclass(frozen=True, kw_only=True)
class Route(ConfigBlock):
    """A block that lists others."""

    stops: tuple[Stop, ...] = ()


def test_lists_of_blocks_keep_their_order() -> None:
    """A list gives a tuple of blocks, one mapping stands for a list of one, and nothing for an empty list."""
    two = parse_config(Route, {"stops": [{"number": 2, "town": "Bonn"}, {"number": 1}]}).value
    one = parse_config(Route, {"stops": {"number": 1}}).value
    assert two == Route(stops=(Stop(number=2, city="Bonn"), Stop(number=1)))
    assert one == Route(stops=(Stop(number=1),))
    assert parse_config(Route, {}).value == Route()


@pytest.mark.parametrize(
    ("stops", "key", "words"),
    [
        ("x", "stops", "use a mapping, or a list of mappings, with keys from number, city"),
        ([{"number": 1}, 2], "stops[1]", "use a mapping with keys from number, city"),
        ([{"number": 1}, {}], "stops[1].number", "is missing; use a whole number"),
        ([{"number": "1"}], "stops[0].number", "use a whole number"),
        ({"number": 1, "city": "A", "town": "B"}, "stops.town", "means city, which is given already"),
    ],
)
def test_faults_in_a_list_are_named_by_their_place(stops: Any, key: str, words: str) -> None:
    """The key says which entry, the message what would be right."""
    code, found, message = problem_of(Route, {"stops": stops})
    assert (code, found) == ("bad_config_value", key)
    assert words in message


def test_unknown_key_in_a_list_is_no_error() -> None:
    """It is reported with its place, and the rest of the entry counts."""
    parsed = parse_config(Route, {"stops": [{"number": 1, "cty": "A"}]})
    assert parsed.value == Route(stops=(Stop(number=1),))
    assert [(p.code, p.key) for p in parsed.problems] == [("unknown_config_key", "stops[0].cty")]
