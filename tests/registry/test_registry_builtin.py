"""The built-in names, look-up, and inline images."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.registry import (
    Registry,
    UnknownNameError,
    get_environment,
    get_mitigation,
    inline_environment,
    load_registry,
)

_MITIGATIONS = {
    "none": {},
    "tf32_off": {"DISABLE_TF32": "1"},
    "xnack": {"HSA_XNACK": "1"},
    "gpu_max_hw_queues_2": {"GPU_MAX_HW_QUEUES": "2"},
    "hip_launch_blocking": {"HIP_LAUNCH_BLOCKING": "1"},
    "amd_log_level_4": {"AMD_LOG_LEVEL": "4"},
    "hsa_no_sdma": {"HSA_ENABLE_SDMA": "0"},
    "hsa_no_scratch_reclaim": {"HSA_NO_SCRATCH_RECLAIM": "1"},
    "hsa_disable_cache": {"HSA_DISABLE_CACHE": "1"},
    "hsa_enable_cache": {"HSA_DISABLE_CACHE": "0"},
    "debug_hip_dynamic_queues_1": {"DEBUG_HIP_DYNAMIC_QUEUES": "1"},
    "debug_hip_dynamic_queues_2": {"DEBUG_HIP_DYNAMIC_QUEUES": "2"},
    "debug_clr_no_batch_cpu_sync": {"DEBUG_CLR_BATCH_CPU_SYNC_SIZE": "0"},
    "fa_prefer_ck": {"TORCH_ROCM_FA_PREFER_CK": "1"},
    "fa_prefer_aotriton": {"TORCH_ROCM_FA_PREFER_CK": "0"},
    "gpu_force_blit_copy_128": {"GPU_FORCE_BLIT_COPY_SIZE": "128"},
    "nccl_launch_order_implicit": {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"},
    "pytorch_alloc_expandable_segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "pytorch_no_cuda_memory_caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "rccl_gfx942_cheap_fence_off": {"RCCL_GFX942_CHEAP_FENCE_OFF": "1"},
    "roc_aql_queue_size_1024": {"ROC_AQL_QUEUE_SIZE": "1024"},
    "roc_signal_pool_16k": {"ROC_SIGNAL_POOL_SIZE": "16384"},
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


def test_built_in_mitigations_set_the_documented_variables(registry: Registry) -> None:
    """Names and values are what recipes in the field rely on."""
    own = {name: dict(item.env) for name, item in registry.mitigations.items() if item.source_package == "aorta"}
    assert own == _MITIGATIONS


@pytest.mark.parametrize(
    ("name", "emulator", "profile"),
    [
        ("local", None, None),
        ("default", None, None),
        ("emulated-rocjitsu", "rocjitsu", "mi350x"),
        ("emulated-rocjitsu-dbt", "rocjitsu", "dbt-mi350x"),
    ],
)
def test_built_in_environment_is_described(name: str, emulator: str | None, profile: str | None) -> None:
    """Each environment has its fields, and says that it comes from aorta."""
    environment = get_environment(name)
    assert (environment.emulator, environment.mirage_profile) == (emulator, profile)
    assert (environment.docker, environment.venv, environment.source_package) == (None, None, "aorta")


@pytest.mark.parametrize(
    ("asked", "meant"), [("tf32off", "tf32_off"), ("XNACK", "xnack"), ("hsa_disable_cach", "hsa_disable_cache")]
)
def test_unknown_mitigation_names_the_nearest(asked: str, meant: str) -> None:
    """A slip is answered with the name that was probably meant."""
    with pytest.raises(UnknownNameError) as caught:
        get_mitigation(asked)
    expected = f"'{asked}' is not a registered mitigation; did you mean '{meant}'? (aorta mitigations list)"
    assert str(caught.value) == expected
    assert (caught.value.kind, caught.value.name) == ("mitigation", asked)


def test_unknown_name_is_a_key_error_and_a_value_error() -> None:
    """Callers may catch either."""
    for kind in (KeyError, ValueError):
        with pytest.raises(kind):
            get_environment("nowhere")


def test_very_long_unknown_name_is_cut() -> None:
    """A megabyte of name is neither printed nor compared."""
    with pytest.raises(UnknownNameError) as caught:
        get_mitigation("x" * 1_000_000)
    assert len(str(caught.value)) < 200


def test_registry_cannot_be_changed(registry: Registry) -> None:
    """No caller can alter a built-in for the next one."""
    with pytest.raises(TypeError):
        cast("MutableMapping[str, object]", registry.mitigations)["new"] = None
    with pytest.raises(TypeError):
        cast("MutableMapping[str, str]", registry.mitigations["xnack"].env)["HSA_XNACK"] = "0"


@pytest.mark.parametrize(
    ("image", "env", "name"),
    [
        ("acme/box:2", None, "_inline_acb97e4a"),
        ("acme/box:2", {}, "_inline_acb97e4a"),
        # printf 'acme/box:2\0{"A":"1","B":"2"}' | b2sum --length 32
        ("acme/box:2", {"B": "2", "A": "1"}, "_inline_047a023d"),
    ],
)
def test_inline_name_is_the_digest_of_image_and_variables(image: str, env: dict[str, str] | None, name: str) -> None:
    """The name is fixed by other tools' records, whatever the order of the variables."""
    assert inline_environment(image, env).name == name


@given(st.text(), st.dictionaries(st.text(), st.text(), min_size=1))
def test_inline_variables_are_part_of_the_identity(image: str, env: dict[str, str]) -> None:
    """One image with other variables is another environment."""
    try:
        image.encode()
    except UnicodeEncodeError:
        return
    assert inline_environment(image, env).name != inline_environment(image).name
    assert inline_environment(image, env).env == env


def test_descriptor_is_json(registry: Registry) -> None:
    """An environment's descriptor can be recorded."""
    for environment in registry.environments.values():
        assert json.loads(json.dumps(environment.descriptor()))["name"] == environment.name
