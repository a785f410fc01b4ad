"""One rank's trial: set-up, warm-up, verified iterations, result.

Imports torch; import this module from ``setup()`` or ``run()``.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from aorta.race.base import CommunicationPattern, RaceContext, local_weights
from aorta.race.buffers import buffer_names
from aorta.race.compute import Compute, build_compute
from aorta.race.config import ReproducerConfig, effective_sizes
from aorta.race.ddp import DdpPattern
from aorta.race.default import DefaultPattern
from aorta.race.fsdp import FsdpPattern, GatherPattern
from aorta.race.golden import Golden
from aorta.race.lanes import Lanes, StepClock
from aorta.race.verify import Verifier
from aorta.workloads.base import WorkloadResult
from aorta.workloads.dtypes import torch_dtype
from aorta.workloads.inject import Injector, merge_reports
from aorta.workloads.process_group import RankInfo, gather_objects
from aorta.workloads.timing import percentile

logger = logging.getLogger("aorta.workloads")


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How the ranks lie on hosts.

    Attributes:
        local_world_size: Ranks on this rank's host.
        node_count: Number of hosts.
    """

    local_world_size: int
    node_count: int


class StopAgreement:
    """Lets all ranks stop after the same iteration without waiting for each other inside one.

    Each iteration, those of the warm-up too, ends with a one-element maximum in flight; it is read when the next
    iteration is over.

    Args:
        device: Where the ranks' collectives work.
    """

    def __init__(self, device: torch.device) -> None:
        self._flags = [torch.zeros(1, dtype=torch.int32, device=device) for _ in range(2)]
        self._host = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._on_device = device.type == "cuda"
        self._turn = 0
        self._work: Any = None
        self._ready: Any = None

    def exchange(self, corrupted: bool) -> bool:
        """Returns whether any rank had found a corruption one iteration ago, and sends this rank's present state."""
        stop = self._receive()
        flag = self._flags[self._turn]
        self._turn = 1 - self._turn
        flag.fill_(int(corrupted))
        self._work = dist.all_reduce(flag, op=dist.ReduceOp.MAX, async_op=True)
        if self._on_device:
            self._work.wait()
            self._host.copy_(flag, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record()
        return stop

    def finish(self) -> None:
        """Receives what is still in flight."""
        self._receive()

    def _receive(self) -> bool:
        if self._work is None:
            return False
        if self._on_device:
            self._ready.synchronize()
            self._work = None
            return bool(self._host.item())
        self._work.wait()
        self._work = None
        return bool(self._flags[1 - self._turn].item())


class RaceSession:
    """Buffers and state of one rank; needs the process group.

    Args:
        settings: Configuration.
        info: This rank among the others.
        device: Where it works.
        environ: The process's environment, for what the launcher says about the host and for the queue limit.
        trial: The trial's number, which planted faults depend on.

    Raises:
        ValueError: A planted fault can never strike.
        RuntimeError: The world is too large for exact sums.
    """

    def __init__(
        self,
        settings: ReproducerConfig,
        info: RankInfo,
        device: torch.device,
        environ: Mapping[str, str],
        *,
        trial: int = 0,
    ) -> None:
        self._settings = settings
        self._info = info
        self._device = device
        self._queues = environ.get("GPU_MAX_HW_QUEUES", "")
        self._injector = Injector.from_config(settings.inject, rank=info.rank, world_size=info.world_size, trial=trial)
        self._injector.expect(buffers=buffer_names(settings), steps=settings.verify_iterations)
        self.seed = settings.deterministic_seed if settings.deterministic else torch.seed() % (1 << 31)
        self._topology = _topology(info, environ)
        self._check_topology()
        compute = build_compute(settings, device, self.seed + info.rank)
        self._verifier = Verifier(rank=info.rank, device=device, injector=self._injector)
        self._sizes = effective_sizes(settings, info.world_size)
        self._pattern = self._build(compute)

    def run(self) -> WorkloadResult:
        """Runs all iterations, or until any rank finds a corruption; every rank returns the same verdict."""
        s, verifier = self._settings, self._verifier
        agreement = StopAgreement(self._device) if s.stop_on_first_corruption else None
        clock = StepClock(self._device)
        executed = 0
        for tick in range(s.warmup_iterations + s.verify_iterations):
            iteration = tick - s.warmup_iterations
            if iteration == 0:
                clock.mark()
            self.iterate(tick, iteration)
            stop = agreement.exchange(verifier.corrupted) if agreement is not None else False
            if iteration < 0:
                continue
            clock.mark()
            executed = iteration + 1
            self._say_progress(executed)
            if stop:
                break
        if agreement is not None:
            agreement.finish()
        verifier.finish()
        return self._result(executed, clock.times_ms())

    def iterate(self, tick: int, iteration: int) -> None:
        """Runs one iteration.

        Args:
            tick: Its number, counted from the warm-up's first: what the contents of the buffers depend on.
            iteration: Number of the verified iteration; negative for one that is not verified.
        """
        self._injector.step(iteration)
        self._verifier.begin(iteration)
        self._pattern.iterate(tick)
        self._verifier.end()

    @property
    def corrupted(self) -> bool:
        """Whether this rank has seen any corruption so far."""
        return self._verifier.corrupted

    def _build(self, compute: Compute) -> CommunicationPattern:
        s = self._settings

        def context(golden: Golden | None) -> RaceContext:
            return RaceContext(
                settings=s,
                sizes=self._sizes,
                rank=self._info.rank,
                world_size=self._info.world_size,
                device=self._device,
                dtype=torch_dtype(s.dtype),
                lanes=lanes,
                verifier=self._verifier,
                compute=compute,
                golden=golden,
            )

        lanes = Lanes(self._device, same_stream=s.same_stream_mode)
        bare = context(None)
        if s.mode == "fsdp":
            gather = GatherPattern(bare)
            return FsdpPattern(context(_gathered_golden(bare, gather) if s.shared_layer_weights else None), gather)
        full = context(_local_golden(bare) if s.shared_layer_weights and s.simulate_compute else None)
        return DdpPattern(full) if s.mode == "ddp" else DefaultPattern(full)

    def _check_topology(self) -> None:
        wanted, found = self._settings.expected_local_world_size, self._topology.local_world_size
        if wanted is not None and wanted != found and self._info.rank == 0:
            logger.warning("race: the recipe expects %d ranks a host and this trial has %d", wanted, found)

    def _say_progress(self, executed: int) -> None:
        s = self._settings
        if s.log_interval and executed % s.log_interval == 0 and self._info.rank == 0:
            found = self._verifier.log.count
            print(f"race: iteration {executed} of {s.verify_iterations}, {found} corruptions on rank 0", flush=True)
            sys.stdout.flush()

    def _result(self, executed: int, times_ms: list[float]) -> WorkloadResult:
        log = self._verifier.log
        mine = (log.count, log.first_step, log.details, self._verifier.checksum_mismatches(), self._injector.report())
        # One exchange at the end: each rank's findings, as only rank 0's result is recorded.
        gathered = gather_objects(mine, self._info.world_size)
        counts, first_steps, details, mismatches, reports = zip(*gathered, strict=True)
        failures = sum(counts)
        entries = sorted((e for of_rank in details for e in of_rank), key=lambda e: (e["iteration"], e["rank"]))
        metrics = self._metrics(times_ms)
        metrics["layer_checksum_mismatches"] = sum(mismatches)
        if self._injector:
            metrics["injected"] = merge_reports(reports)
        return WorkloadResult(
            passed=failures == 0 and sum(mismatches) == 0,
            failure_count=failures,
            first_failure_iteration=min((first for first in first_steps if first is not None), default=None),
            failure_details=entries,
            total_iterations=executed,
            step_times_ms=times_ms,
            elapsed_sec=sum(times_ms) / 1000,
            metrics=metrics,
            main_work_started=True,
            executed_iterations=executed,
            configured_iterations=self._settings.verify_iterations,
        )

    def _metrics(self, times_ms: list[float]) -> dict[str, Any]:
        s = self._settings
        expected = s.expected_local_world_size
        return {
            "mode": s.mode,
            "compute_type": s.compute_type,
            "simulate_compute": s.simulate_compute,
            "optimizer": s.optimizer,
            "dtype": s.dtype,
            "device": str(self._device),
            "layers": s.layers,
            "layers_verified": self._verifier.layers_verified,
            "avg_step_time_ms": sum(times_ms) / len(times_ms) if times_ms else None,
            "step_time_p50": percentile(times_ms, 50),
            "step_time_p99": percentile(times_ms, 99),
            "h2d_tensor_size": s.h2d_tensor_size,
            "alltoall_tensor_size": self._sizes.alltoall_tensor_size,
            "allreduce_tensor_size": self._sizes.allreduce_tensor_size,
            "fsdp_shard_size": self._sizes.fsdp_shard_size,
            "reduce_scatter_oracle_dtype": "float32",
            "compute_seed": self.seed,
            "gpu_max_hw_queues": self._queues,
            "rank": self._info.rank,
            "world_size": self._info.world_size,
            "local_world_size": self._topology.local_world_size,
            "node_count": self._topology.node_count,
            "topology_matches_recipe": expected is None or expected == self._topology.local_world_size,
        }


def _topology(info: RankInfo, environ: Mapping[str, str]) -> Topology:
    """Counts hosts by their first ranks, as hosts may share a name; a collective."""
    gathered = gather_objects((socket.gethostname(), info.local_rank), info.world_size)
    told = environ.get("LOCAL_WORLD_SIZE", "")
    local = int(told) if told.isdecimal() else sum(host == socket.gethostname() for host, _ in gathered)
    return Topology(local_world_size=local, node_count=sum(local_rank == 0 for _, local_rank in gathered))


def _gathered_golden(context: RaceContext, gather: GatherPattern) -> Golden:
    return Golden(context.compute, [gather.all(phase, 0).reshape(-1) for phase in range(gather.phases)])


def _local_golden(context: RaceContext) -> Golden:
    return Golden(context.compute, [local_weights(context).message(layer=0).clone()])
