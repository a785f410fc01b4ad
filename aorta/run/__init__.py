"""One trial: a light supervisor starts a fresh interpreter and turns every way it can end into a result.

Nothing is imported here: the supervisor's start-up time is paid once per trial, thousands of times. The public names
are loaded when they are first asked for.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aorta.run.docker import docker_env_flags
    from aorta.run.trials import RunError, RunRequest, TrialResult, run_trials

__all__ = ["RunError", "RunRequest", "TrialResult", "docker_env_flags", "run_trials"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("aorta.run.docker" if name == "docker_env_flags" else "aorta.run.trials"), name)
