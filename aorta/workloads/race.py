"""``race``: communication with known contents and correct synchronisation, whose every result is compared bit for bit.

What it communicates and computes is in :mod:`aorta.race`; ``docs/race.md`` is for users.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from aorta.race.check import race_trial_problems
from aorta.race.config import ReproducerConfig, process_environment, race_config_problems, unused_keys
from aorta.workloads.base import ConfigProblem, TrialShape, WorkloadResult
from aorta.workloads.config import ConfigBlock, parse_config
from aorta.workloads.configured import DistributedWorkload
from aorta.workloads.inject import TRIAL_INDEX_KEY

if TYPE_CHECKING:
    from aorta.race.session import RaceSession

logger = logging.getLogger("aorta.workloads")


class RaceWorkload(DistributedWorkload[ReproducerConfig]):
    """Runs ``warmup_iterations + verify_iterations`` iterations of a communication pattern on all ranks.

    Each trial needs processes of its own: what it varies (queues, protocols, GPU-direct) is read once by libraries that
    are loaded once.
    """

    name: ClassVar[str] = "race"
    config_class: ClassVar[type[ConfigBlock]] = ReproducerConfig
    min_world_size: ClassVar[int] = 2
    isolation_supported: ClassVar[frozenset[str]] = frozenset({"process"})
    isolation_required: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        for key, why in unused_keys(self.settings, config):
            logger.warning("race: workload_config key '%s' %s", key, why)
        self._session: RaceSession | None = None

    @classmethod
    def check_config(cls, config: Mapping[str, Any]) -> list[ConfigProblem]:
        """Reports unknown and unused keys and unusable values of a merged ``workload_config``."""
        return race_config_problems(config)

    @classmethod
    def check_trial(cls, config: Mapping[str, Any], shape: TrialShape) -> list[ConfigProblem]:
        """Reports a number of ranks that the recipe is not made for, and planted faults that can never strike."""
        return race_trial_problems(config, shape)

    @classmethod
    def process_env(cls, config: Mapping[str, Any]) -> dict[str, str]:
        """Returns the variables that the ranks start with unless the cell sets them; none if a value is unusable."""
        settings = parse_config(ReproducerConfig, config).value
        return process_environment(settings) if settings is not None else {}

    def setup(self) -> None:
        """Joins the process group and builds the buffers, on this rank's device.

        Raises:
            RuntimeError: The launcher's variables are incomplete, there are fewer than two ranks, or the device is
                not there.
            ValueError: A planted fault can never strike.
        """
        # For ranks that no plan started: before torch loads the runtime that reads them.
        for name, value in process_environment(self.settings).items():
            os.environ.setdefault(name, value)
        import torch

        from aorta.race.session import RaceSession
        from aorta.workloads.device import choose_device
        from aorta.workloads.process_group import RankInfo, join_process_group

        info = RankInfo.from_environment(os.environ)
        if info.world_size < self.min_world_size:
            raise RuntimeError(
                f"race needs at least {self.min_world_size} ranks and WORLD_SIZE is {info.world_size}; "
                "start the ranks with torchrun, or set nproc_per_node"
            )
        device = choose_device(self.settings.device, info.local_rank)
        torch.use_deterministic_algorithms(self.settings.deterministic, warn_only=True)
        join_process_group(info, device)
        trial = int(self.config.get(TRIAL_INDEX_KEY, 0))
        self._session = RaceSession(self.settings, info, device, os.environ, trial=trial)

    def run(self) -> WorkloadResult:
        """Runs the iterations; every rank returns the same verdict and records, with its own step times."""
        if self._session is None:
            raise RuntimeError("run() needs setup() first")
        return self._session.run()

    def cleanup(self) -> None:
        """Leaves the process group and frees the buffers; also after a setup() that failed half-way."""
        self._session = None
        super().cleanup()
