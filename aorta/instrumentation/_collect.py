"""Collects the environment snapshot: runs every block's probe under a guard, and puts the answers together."""

from __future__ import annotations

import threading
import time

from aorta import __version__
from aorta.instrumentation._shape import BLOCKS, SCHEMA_VERSION
from aorta.instrumentation._system import Absent, Probe, System, clean
from aorta.instrumentation.probes import catalogues, env_vars, host, libraries, network, nvidia, pytorch, rocm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

# A read of sysfs on a GPU that is being reset can block for good; the block is given up, the others are kept.
BLOCK_LIMIT_SEC = 15.0

_PROBES: dict[str, Callable[[Probe], dict[str, Any]]] = {
    "host": host.host,
    "runtime_context": host.runtime_context,
    "python": host.python,
    "env_vars": env_vars.env_vars,
    "rocm": rocm.rocm,
    "hip": rocm.hip,
    "amdgpu_driver": rocm.amdgpu_driver,
    "gpu_arch": rocm.gpu_arch,
    "hipblaslt": libraries.hipblaslt,
    "rocblas": libraries.rocblas,
    "composable_kernel": libraries.composable_kernel,
    "tensile": catalogues.tensile,
    "miopen": catalogues.miopen,
    "rccl": libraries.rccl,
    "aotriton": libraries.aotriton,
    "triton": pytorch.triton,
    "fbgemm": pytorch.fbgemm,
    "pytorch": pytorch.pytorch,
    "nvidia": nvidia.nvidia,
    "nics": network.nics,
}


def collect_env(
    import_torch: bool = True,
    *,
    root: str = "/",
    environ: Mapping[str, str] | None = None,
    python_path: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Describes the machine, the runtime and the software that a trial of this process would run on. Never raises.

    What is not there is recorded as ``"available": false`` with a reason, a single unknown field as null with a
    reason in its block's ``missing``. What is there and could not be read makes the snapshot ``partial``.

    Args:
        import_torch: Whether to start a second process that imports PyTorch (1 to 30 s) and reports its flags and
            attention back-ends. Without it those fields are null.
        root: Where the probed machine's ``/`` lies.
        environ: Environment variables to record and to run tools with; this process's own by default.
        python_path: Folders to look for Python packages in; ``sys.path`` by default.

    Returns:
        The snapshot, as ``schemas/env.schema.json`` describes it: strict JSON values only.
    """
    started = time.monotonic()
    captured_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    blocks: dict[str, Any] = {}
    reasons: list[str] = []
    try:
        system = System(root=root, environ=environ, python_path=python_path)
        probes = dict(_PROBES)
        if not import_torch:
            probes["pytorch"] = pytorch.pytorch_unimported
        blocks, reasons = run_probes(system, probes)
    except Exception as error:
        reasons = [f"snapshot: {_describe(error)}"]
    for name in BLOCKS:
        blocks.setdefault(name, _unavailable("the snapshot itself failed: " + "; ".join(reasons), {}))
    return {
        "schema_version": SCHEMA_VERSION,
        "snapshot_captured": True,
        "captured_at": captured_at,
        "duration_sec": round(time.monotonic() - started, 3),
        "aorta_version": __version__,
        "partial": bool(reasons),
        "partial_reasons": reasons,
        **{name: blocks[name] for name in BLOCKS},
    }


def run_probes(
    system: System,
    probes: Mapping[str, Callable[[Probe], dict[str, Any]]],
    *,
    limit_sec: float = BLOCK_LIMIT_SEC,
) -> tuple[dict[str, Any], list[str]]:
    """Runs the probes side by side, each in a thread that may be left behind if it never returns.

    Args:
        system: The machine to look at.
        probes: Block names to functions.
        limit_sec: Time limit of all blocks together in seconds; PyTorch's import has its own on top.

    Returns:
        The blocks by name, and ``<block>: <what failed>`` for everything that makes the snapshot partial.
    """
    running = [(name, _Guarded(system, function)) for name, function in probes.items()]
    started = time.monotonic()
    blocks: dict[str, Any] = {}
    reasons: list[str] = []
    for name, guarded in running:
        limit = limit_sec + (pytorch.IMPORT_LIMIT_SEC if name == "pytorch" else 0.0)
        block, failures = guarded.outcome(limit - (time.monotonic() - started), limit)
        blocks[name] = block
        reasons.extend(clean(f"{name}: {failure}") for failure in failures)
    return blocks, reasons


class _Guarded:
    """One probe at work: its thread, and what came of it."""

    def __init__(self, system: System, function: Callable[[Probe], dict[str, Any]]) -> None:
        self._probe = Probe(system)
        self._function = function
        self._done: tuple[dict[str, Any], list[str]] | None = None
        self._thread: threading.Thread | None = threading.Thread(target=self._work, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # a container at its limit of processes
            self._thread = None
            self._work()

    def _work(self) -> None:
        probe = self._probe
        try:
            fields = self._function(probe)
            block = {"available": True, "reason": None, "missing": dict(probe.missing), **fields}
        except Absent as absence:
            block = _unavailable(str(absence), probe.missing)
        except Exception as error:
            probe.fail(_describe(error))
            block = _unavailable(_describe(error), probe.missing)
        self._done = clean(block), list(probe.failures)

    def outcome(self, wait_sec: float, limit_sec: float) -> tuple[dict[str, Any], list[str]]:
        """Returns the block and its failures, after waiting for at most ``wait_sec``."""
        if self._thread is not None:
            self._thread.join(max(0.0, wait_sec))
        if self._done is not None:
            return self._done
        late = f"did not finish within {limit_sec:g} s"
        return _unavailable(late, {}), [late]


def _unavailable(reason: str, missing: Mapping[str, str]) -> dict[str, Any]:
    return {"available": False, "reason": clean(reason), "missing": clean(dict(missing))}


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0][:500]
