"""Workloads whose ``workload_config`` is a block of checked settings. Light: no torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

from aorta.workloads.base import ConfigProblem, Workload
from aorta.workloads.config import ConfigBlock, load_config, parse_config, read_steps

T = TypeVar("T", bound=ConfigBlock)


class ConfiguredWorkload(Workload, Generic[T]):
    """A workload with a configuration class.

    Attributes:
        name: What warnings call the workload.
        config_class: The class of its ``workload_config``.
        settings: The checked configuration.
        steps: The engine's number of steps.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[ConfigBlock]]

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.steps = read_steps(config)
        self.settings = cast(T, load_config(self.config_class, config, self.name))

    @classmethod
    def check_config(cls, config: Mapping[str, Any]) -> list[ConfigProblem]:
        """Reports unknown keys and unusable values of a merged ``workload_config``."""
        return parse_config(cls.config_class, config).problems


class DistributedWorkload(ConfiguredWorkload[T]):
    """One whose trial is a process group, which its ``setup()`` joins."""

    launch_mode: ClassVar[Literal["single_process", "distributed"]] = "distributed"

    def cleanup(self) -> None:
        """Leaves the process group; also after a ``setup()`` that failed half-way."""
        # It may have failed before torch was imported, and then there is no group to leave.
        if "torch.distributed" in sys.modules:
            from aorta.workloads.process_group import leave_process_group

            leave_process_group()
