"""What a trial runs. Plugins register a class in the ``aorta.workloads`` entry-point group."""

from aorta.workloads.base import ConfigProblem, Workload, WorkloadResult

__all__ = ["ConfigProblem", "Workload", "WorkloadResult"]
