"""What is known of workloads before they run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aorta.registry import RegistryError
from aorta.registry.workloads import WorkloadTraits, traits, workload_class, workload_names, workload_reference
from aorta.workloads.base import Workload
from tests.registry.conftest import InstallPlugin


def test_built_in_workloads_are_registered() -> None:
    """The workloads of this distribution are found through its own entry points."""
    assert {"gpu_smoke", "inference", "training"} <= set(workload_names())
    assert workload_reference("training") == "aorta.workloads.training:TrainingWorkload"


def test_traits_come_from_the_class() -> None:
    """A registered workload's metadata is its class's."""
    found = traits("training")
    assert (found.registered, found.launch_mode, found.min_world_size) == (True, "distributed", 1)


def test_traits_of_an_unregistered_workload_are_the_contract_s_defaults() -> None:
    """The defaults are written in two places; this keeps them equal."""
    found = traits("nobody_has_this")
    assert found == WorkloadTraits()
    for name in ("launch_mode", "min_world_size", "isolation_supported", "isolation_default", "isolation_required"):
        assert getattr(found, name) == getattr(Workload, name)
    assert found.acts_on == Workload.acts_on


def test_race_requires_process_isolation() -> None:
    """The guide fixes this, whether race is installed here or not."""
    found = traits("race")
    assert (found.isolation_required, found.launch_mode, found.min_world_size) == (True, "distributed", 2)


def test_plugin_class_with_only_some_attributes_gets_the_other_defaults(install_plugin: InstallPlugin) -> None:
    """A class need not derive from Workload."""
    install_plugin("acme-w", "class W:\n    isolation_required = True\n", workloads={"acme_w": "W"})
    found = traits("acme_w")
    assert (found.registered, found.isolation_required, found.min_world_size) == (True, True, 1)


def test_workload_that_cannot_be_imported_says_why(install_plugin: InstallPlugin) -> None:
    """Asking for the class raises; asking for traits falls back, since only its cells would fail."""
    install_plugin("acme-w", "import no_such_module_of_acme\n", workloads={"acme_w": "W"})
    with pytest.raises(RegistryError, match="no_such_module_of_acme"):
        workload_class("acme_w")
    assert traits("acme_w") == WorkloadTraits()


def test_entry_that_is_no_class_is_refused(install_plugin: InstallPlugin) -> None:
    """A function or a number is no workload."""
    install_plugin("acme-w", "W = 7\n", workloads={"acme_w": "W"})
    with pytest.raises(RegistryError, match="is not a class but 7"):
        workload_class("acme_w")


def test_unknown_workload_has_no_class() -> None:
    """An unknown name is not an error here."""
    assert workload_class("nobody_has_this") is None
    assert workload_reference("nobody_has_this") is None


def test_traits_of_the_built_ins_import_no_torch() -> None:
    """Looking at the built-in workloads must not cost a torch import."""
    code = (
        "import sys; from aorta.registry.workloads import traits;"
        "[traits(name) for name in ('training', 'inference', 'gpu_smoke', 'llm_determinism')];"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
