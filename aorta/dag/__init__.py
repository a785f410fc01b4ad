"""What the Snakefile asks of the engine: settings, the plan behind the rules, the lock, and the scheduling order."""

from aorta.dag.sweep import Sweep, open_sweep

__all__ = ["Sweep", "open_sweep"]
