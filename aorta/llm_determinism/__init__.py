"""Replaying a training step from a snapshot and comparing its bits: the inside of the workload ``llm_determinism``."""
