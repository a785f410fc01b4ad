"""Every recipe that ships against the table of what is to ship: tickets, trials, settings, variables, cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from aorta._resources import resource_path
from aorta.recipe import Cell, Recipe, load_recipe
from aorta.registry import Registry
from aorta.registry.workloads import workload_class
from aorta.workloads.base import Workload
from aorta.workloads.config import parse_config
from aorta.workloads.inference import InferenceConfig

LOCAL, EMULATED = ["baseline-local"], ["baseline-emulated"]
AINIC = {"NCCL_NET_GDR_LEVEL": "SYS", "NCCL_DMABUF_ENABLE": "1", "NCCL_NET_GDR_READ": "1"}
RACE_SMOKE = {
    "mode": "fsdp",
    "verify_iterations": 5,
    "compute_type": "transformer",
    "model_dim": 512,
    "num_layers": 4,
    "fsdp_shard_size": 250_000,
    "shared_layer_weights": True,
    "real_backward": True,
}
SDC = {
    "warmup_iterations": 0,
    "verify_iterations": 200,
    "stop_on_first_corruption": False,
    "compute_type": "transformer",
    "model_dim": 1024,
    "num_layers": 24,
    "fsdp_shard_size": 1_000_000,
}
SDC_CELLS = {
    "baseline-no-gdr-flush": {"NCCL_GDR_FLUSH_DISABLE": "1"},
    "gdr-flush": {"NCCL_GDR_FLUSH_DISABLE": "0"},
    "strict-pcie-ordering": {"NCCL_IB_PCI_RELAXED_ORDERING": "0"},
    "both": {"NCCL_GDR_FLUSH_DISABLE": "0", "NCCL_IB_PCI_RELAXED_ORDERING": "0"},
    "ll-protocol-control": {"NCCL_PROTO": "LL"},
}
PROBES = ("static", "module", "graph_add", "graph_setparams", "graph_execsetparams")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a shipped recipe must say; settings and variables may hold more than these."""

    ticket: str
    workload: str
    cells: list[str]
    trials: int = 1
    steps: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    extra_env: dict[str, str] = field(default_factory=dict)
    isolation: str = "auto"
    environment: str = "local"


TABLE = {
    "training/example-fsdp-smoke": Row(
        ticket="EXAMPLE-151",
        workload="race",
        trials=2,
        config={
            "mode": "fsdp",
            "warmup_iterations": 2,
            "verify_iterations": 5,
            "simulate_compute": False,
            "fsdp_shard_size": 100_000,
        },
        cells=["baseline-local", "tf32_off-local", "xnack-local"],
    ),
    "training/example-training-ddp-smoke": Row(
        ticket="EXAMPLE-TRAINING-DDP",
        workload="training",
        steps=4,
        config={
            "parallelism": "ddp",
            "seq_len": 64,
            "model": {"kind": "mlp", "hidden_size": 256, "num_layers": 2, "vocab_size": 1024},
        },
        cells=LOCAL,
    ),
    "training/example-training-fsdp-smoke": Row(
        ticket="EXAMPLE-TRAINING-FSDP",
        workload="training",
        steps=4,
        config={
            "parallelism": "fsdp",
            "seq_len": 128,
            "model": {"kind": "transformer", "hidden_size": 256, "num_layers": 2, "num_heads": 4, "ffn_size": 1024},
        },
        cells=LOCAL,
    ),
    "inference/example-inference-smoke": Row(
        ticket="EXAMPLE-INFERENCE-SMOKE", workload="inference", config={"mode": "offline_batch"}, cells=LOCAL
    ),
    "inference/example-inference-continuous-smoke": Row(
        ticket="EXAMPLE-INFERENCE-CONTINUOUS-SMOKE",
        workload="inference",
        config={
            "mode": "continuous_batch",
            "request": {"num_requests": 6, "prompt_len": 64, "generate_tokens": 8},
            "serving": {
                "kv_cache": True,
                "continuous_batch": {"enabled": True, "max_active_requests": 4, "arrival_pattern": "fixed"},
            },
        },
        cells=LOCAL,
    ),
    "llm-determinism/example-llm-determinism": Row(
        ticket="LLM-DET-001",
        workload="llm_determinism",
        trials=4,
        isolation="process",
        cells=["baseline-bf16-24L", "bf16-12L", "tf32_off-bf16-24L", "moe4-bf16-12L"],
    ),
    "race/race_smoke": Row(
        ticket="RACE-SMOKE",
        workload="race",
        config=RACE_SMOKE,
        extra_env={"NCCL_PROTO": "Simple", "NCCL_DEBUG": "INFO"},
        cells=LOCAL,
    ),
    "race/ainic-smoke": Row(
        ticket="AINIC-SMOKE",
        workload="race",
        config=RACE_SMOKE,
        extra_env={"NCCL_PROTO": "Simple", "NCCL_DEBUG": "INFO", **AINIC},
        cells=LOCAL,
    ),
    "race/ainic-gdr-flush-sdc": Row(
        ticket="AINIC-SDC-001", workload="race", trials=16, config=SDC, extra_env=AINIC, cells=list(SDC_CELLS)
    ),
    "race/ainic-gdr-flush-sdc-quick": Row(
        ticket="AINIC-SDC-001",
        workload="race",
        trials=4,
        config=SDC,
        extra_env=AINIC,
        cells=["baseline-no-gdr-flush", "gdr-flush", "ll-protocol-control"],
    ),
    "race/ainic-sdc-stress-reproducer": Row(
        ticket="AINIC-SDC-001",
        workload="race",
        trials=24,
        config={"h2d_tensor_size": 10_000_000, "h2d_prefetch": True, "gemm_size": 5120, "gemm_layers": 48},
        extra_env={"GPU_MAX_HW_QUEUES": "4", "NCCL_NCHANNELS_PER_NET_PEER": "4", "NCCL_MAX_NCHANNELS": "8"},
        cells=["baseline-stressed", "gdr-flush-stressed", "hw-queues-2-masked", "ll-protocol-control"],
    ),
    "hrx/hrx-launch-probe-smoke": Row(
        ticket="HRX-273-SMOKE", workload="hrx", config={"probe": "module"}, cells=["hrx_off", "hrx_on"]
    ),
    "hrx/hrx-launch-probe-all": Row(
        ticket="HRX-273-ALL",
        workload="hrx",
        trials=3,
        cells=[f"{probe}-hrx_{side}" for probe in PROBES for side in ("off", "on")],
    ),
    "hrx/hrx-perf-gemm": Row(
        ticket="HRX-PERF-GEMM",
        workload="hrx_perf",
        trials=4,
        config={"bench": "gemm", "size": 4096, "iters": 50, "warmup": 10},
        cells=["hrx_off", "hrx_on"],
    ),
    "hrx/hrx-perf-triad": Row(
        ticket="HRX-PERF-TRIAD",
        workload="hrx_perf",
        trials=4,
        config={"bench": "triad", "size": 64_000_000, "iters": 50, "warmup": 10},
        cells=["hrx_off", "hrx_on"],
    ),
    "emulated/gpu-smoke-emulated": Row(
        ticket="EMU-GPU-SMOKE", workload="gpu_smoke", environment="emulated-rocjitsu", cells=EMULATED
    ),
    "emulated/inference-smoke-emulated": Row(
        ticket="EMU-INFERENCE-SMOKE", workload="inference", environment="emulated-rocjitsu", cells=EMULATED
    ),
    "emulated/llm-determinism-emulated": Row(
        ticket="EMU-LLM-DETERMINISM",
        workload="llm_determinism",
        environment="emulated-rocjitsu",
        isolation="process",
        cells=EMULATED,
    ),
    "emulated/training-ddp-smoke-emulated": Row(
        ticket="EMU-TRAINING-DDP-SMOKE",
        workload="training",
        config={"parallelism": "ddp"},
        environment="emulated-rocjitsu",
        cells=EMULATED,
    ),
    "emulated/training-fsdp-smoke-emulated": Row(
        ticket="EMU-TRAINING-FSDP-SMOKE",
        workload="training",
        config={"parallelism": "fsdp"},
        environment="emulated-rocjitsu",
        cells=EMULATED,
    ),
    # Ours, beside the table.
    "training/example-training-mitigations": Row(
        ticket="EXAMPLE-TRAINING-MITIGATIONS",
        workload="training",
        trials=4,
        cells=["baseline-local", "tf32_off-local", "xnack-local", "stack-tf32-xnack-local"],
    ),
    "smoke/gpu-smoke": Row(ticket="GPU-SMOKE", workload="gpu_smoke", trials=2, cells=LOCAL),
}
OWN_TESTS = {"selftest", "probe"}
"""Folders whose recipes have tests of their own."""


def shipped(name: str, registry: Registry) -> Recipe:
    """Loads a shipped recipe by its name below ``recipes/``."""
    return load_recipe(resource_path("recipes", f"{name}.yaml"), registry)


def cells(name: str, registry: Registry) -> dict[str, Cell]:
    """A shipped recipe's cells by name."""
    return {cell.name: cell for cell in shipped(name, registry).cells}


def holds(whole: Any, part: Any) -> bool:
    """Whether a mapping has at least these entries, at every depth."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and holds(whole[key], part[key]) for key in part)
    return type(whole) is type(part) and bool(whole == part)


@pytest.mark.parametrize("name", TABLE)
def test_a_shipped_recipe_is_what_the_table_says(name: str, registry: Registry) -> None:
    """Ticket, workload, trials, steps, cells in order, settings and variables."""
    row, recipe = TABLE[name], shipped(name, registry)
    assert (recipe.ticket, recipe.workload, recipe.trials) == (row.ticket, row.workload, row.trials)
    assert (recipe.steps, recipe.trial_isolation) == (row.steps or recipe.steps, row.isolation)
    assert [cell.name for cell in recipe.cells] == row.cells
    assert {cell.environment.name for cell in recipe.cells} == {row.environment}
    assert holds(recipe.workload_config, row.config), recipe.workload_config
    assert holds(recipe.extra_env, row.extra_env), recipe.extra_env


def test_nothing_ships_beside_the_table() -> None:
    """A new recipe gets a row, or a folder with tests of its own."""
    root = resource_path("recipes")
    found = {path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")}
    assert {name for name in found if name.partition("/")[0] not in OWN_TESTS} == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_shipped_recipe_has_no_setting_that_its_workload_ignores(name: str, registry: Registry) -> None:
    """No cell's merged settings hold an unknown key or an unusable value."""
    recipe = shipped(name, registry)
    workload = workload_class(recipe.workload)
    assert workload is not None
    assert issubclass(workload, Workload)
    merged = [{**recipe.workload_config, **cell.workload_config} for cell in recipe.cells]
    assert [problem for config in merged for problem in workload.check_config(config)] == []


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.workload in ("race", "hrx_perf")])
def test_steps_are_what_the_workload_counts(name: str, registry: Registry) -> None:
    """Where a setting counts, and not the recipe's steps, both say the same."""
    recipe = shipped(name, registry)
    key = "verify_iterations" if recipe.workload == "race" else "iters"
    assert recipe.workload_config[key] == recipe.steps


def test_the_inference_smoke_spells_out_the_defaults(registry: Registry) -> None:
    """Its settings change nothing."""
    config = shipped("inference/example-inference-smoke", registry).workload_config
    assert parse_config(InferenceConfig, config).value == InferenceConfig()


@pytest.mark.parametrize("name", ["race/ainic-gdr-flush-sdc", "race/ainic-gdr-flush-sdc-quick"])
def test_the_flush_cells_set_what_they_are_named_for(name: str, registry: Registry) -> None:
    """Each cell changes its own variables only, and the short form has the same cells."""
    for cell in shipped(name, registry).cells:
        assert (cell.name, cell.extra_env) == (cell.name, SDC_CELLS[cell.name])


def test_the_short_form_is_the_long_one_with_fewer_cells_and_trials(registry: Registry) -> None:
    """All else is the same, so what runs of the one runs of the other."""
    long = shipped("race/ainic-gdr-flush-sdc", registry)
    quick = shipped("race/ainic-gdr-flush-sdc-quick", registry)
    assert (quick.workload_config, quick.extra_env, quick.steps) == (long.workload_config, long.extra_env, long.steps)
    assert quick.confound == long.confound


def test_the_stress_cells_set_what_they_are_named_for(registry: Registry) -> None:
    """One variable each; the baseline none."""
    assert {name: cell.extra_env for name, cell in cells("race/ainic-sdc-stress-reproducer", registry).items()} == {
        "baseline-stressed": {},
        "gdr-flush-stressed": {"NCCL_GDR_FLUSH_DISABLE": "0"},
        "hw-queues-2-masked": {"GPU_MAX_HW_QUEUES": "2"},
        "ll-protocol-control": {"NCCL_PROTO": "LL"},
    }


def test_the_determinism_cells_differ_in_what_they_are_named_for(registry: Registry) -> None:
    """Depth, experts and one mitigation."""
    recipe = shipped("llm-determinism/example-llm-determinism", registry)
    found = {
        cell.name: (
            [mitigation.name for mitigation in cell.mitigations],
            {**recipe.workload_config, **cell.workload_config}.get("num_layers"),
            cell.workload_config.get("num_experts", 1),
        )
        for cell in recipe.cells
    }
    assert found == {
        "baseline-bf16-24L": (["none"], 24, 1),
        "bf16-12L": (["none"], 12, 1),
        "tf32_off-bf16-24L": (["tf32_off"], 24, 1),
        "moe4-bf16-12L": (["none"], 12, 4),
    }
    assert recipe.workload_config["dtype"] == "bf16"


@pytest.mark.parametrize("name", [name for name in TABLE if name.startswith("hrx/")])
def test_hrx_is_off_in_one_cell_and_on_in_the_other(name: str, registry: Registry) -> None:
    """Off changes nothing; on names the driver, and puts the user's libraries first. The baseline is an off cell."""
    recipe = shipped(name, registry)
    for cell in recipe.cells:
        off = cell.name.endswith("hrx_off")
        variables: set[str] = set() if off else {"HRX_GPU_DRIVER", "LD_LIBRARY_PATH", "LD_PRELOAD"}
        assert set(cell.extra_env) == variables
        assert cell.extra_env.get("HRX_GPU_DRIVER", "amdgpu") == "amdgpu"
    assert recipe.confound.baseline_cell is not None
    assert recipe.confound.baseline_cell.endswith("hrx_off")


def test_each_launch_has_a_cell_of_its_own(registry: Registry) -> None:
    """All five, off and on, and the name says which."""
    for name, cell in cells("hrx/hrx-launch-probe-all", registry).items():
        assert cell.workload_config == {"probe": name.rpartition("-")[0]}
