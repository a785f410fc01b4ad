"""Blocks ``pytorch``, ``triton`` and ``fbgemm``."""

from __future__ import annotations

import ast
import json
import os
import sys

from aorta.instrumentation import _torch_child
from aorta.instrumentation._system import Absent
from aorta.instrumentation.probes.packages import installed, package_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aorta.instrumentation._system import Probe

# A cold import from a network file system takes half a minute.
IMPORT_LIMIT_SEC = 60.0

_TRITON = ("triton", "pytorch-triton-rocm", "pytorch-triton", "triton-rocm", "triton-nightly")
_FBGEMM = ("fbgemm-gpu", "fbgemm-gpu-rocm", "fbgemm-gpu-genai", "fbgemm-gpu-nightly", "fbgemm-gpu-cpu")


def pytorch_static(probe: Probe) -> dict[str, Any]:
    """PyTorch's version, build and source revision, read from its ``version.py`` without importing it."""
    folder = package_folder(probe, "torch")
    if folder is None:
        raise Absent("no package torch on Python's search path")
    values = _assignments(probe.read(folder + "/version.py", limit=1 << 18) or "")
    version = values.get("__version__")
    if version is None:
        probe.absent("version", f"no __version__ in {folder}/version.py")
    flavour = "rocm" if values.get("hip") else "cuda" if values.get("cuda") else "cpu"
    return {
        "version": version,
        "path": folder,
        "build": flavour if version is not None else None,
        "hip_version": values.get("hip"),
        "rocm_version": values.get("rocm"),
        "cuda_version": values.get("cuda"),
        "git_commit": values.get("git_version"),
        "debug": values.get("debug"),
        "flags": None,
        "sdpa_backends": None,
        "runtime": None,
    }


def _assignments(source: str) -> dict[str, Any]:
    """Returns the constants that a module's top level assigns, without running it."""
    values: dict[str, Any] = {}
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return values
    for node in body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
            values.update({target.id: node.value.value for target in targets if isinstance(target, ast.Name)})
    return values


def pytorch(probe: Probe) -> dict[str, Any]:
    """The static facts, and the flags and back-ends that a fresh process finds in force."""
    block = pytorch_static(probe)
    child = os.path.abspath(_torch_child.__file__)
    paths = [os.path.abspath(path or ".") for path in probe.system.python_path]
    # The child replaces its search path with the one given, so it sees the PyTorch that this process would.
    argv = [sys.executable, "-s", "-B", child, json.dumps(paths)]
    said = probe.run(argv, timeout_sec=IMPORT_LIMIT_SEC) if sys.executable else None
    marked = [line for line in (said or "").splitlines() if line.startswith(_torch_child.MARK)]
    if not marked:
        for field in ("flags", "sdpa_backends", "runtime"):
            probe.absent(field, "PyTorch could not be imported: " + (probe.failures or ["it said nothing"])[-1])
        return block
    answers = json.loads(marked[-1][len(_torch_child.MARK) :])
    for name, reason in answers.pop("unanswered").items():
        probe.absent(name, reason)
    block.update(answers)
    return block


def pytorch_unimported(probe: Probe) -> dict[str, Any]:
    """The static facts alone."""
    block = pytorch_static(probe)
    for field in ("flags", "sdpa_backends", "runtime"):
        probe.absent(field, "PyTorch was not imported: the caller asked for a quick snapshot")
    return block


def triton(probe: Probe) -> dict[str, Any]:
    """The Triton compiler, under whichever distribution name it came."""
    return _package(probe, "triton", _TRITON)


def fbgemm(probe: Probe) -> dict[str, Any]:
    """FBGEMM's GPU operators."""
    return _package(probe, "fbgemm_gpu", _FBGEMM)


def _package(probe: Probe, module: str, distributions: tuple[str, ...]) -> dict[str, Any]:
    folder = package_folder(probe, module)
    found = installed(probe, distributions)
    if folder is None and found is None:
        raise Absent(f"no package {module} on Python's search path")
    if found is None:
        probe.absent("version", f"{folder} belongs to no installed distribution")
        found = {"distribution": None, "version": None, "git_commit": None}
    if found["git_commit"] is None:
        probe.absent("git_commit", "the distribution does not record it")
    return {**found, "path": folder}
