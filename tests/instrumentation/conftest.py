"""Fakes of a machine: a file tree to stand for ``/``, and tools to stand on PATH."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from aorta._resources import load_schema
from aorta.instrumentation._system import Probe, System


@contextmanager
def through_fifo(path: Path) -> Iterator[list[str]]:
    """Makes a named pipe and reads it until the writer closes; the list has what came once the block has ended."""
    os.mkfifo(path)
    received: list[str] = []
    # Not waited for at exit: a writer that never opens the pipe leaves its reader waiting.
    reader = threading.Thread(target=lambda: received.append(path.read_text("utf-8")), daemon=True)
    reader.start()
    yield received
    reader.join(timeout=30)


class Machine:
    """A file tree that stands for another machine's ``/``, with its tools in ``/bin``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ: dict[str, str] = {"PATH": str(root / "bin")}

    def file(self, path: str, content: str | bytes = "") -> Path:
        """Writes one file."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return target

    def files(self, contents: Mapping[str, str]) -> None:
        """Writes several files."""
        for path, content in contents.items():
            self.file(path, content)

    def link(self, path: str, target: str) -> None:
        """Makes a symbolic link, whose target may be dangling, as sysfs links are read by name alone."""
        link = self.root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def tool(self, name: str, script: str) -> Path:
        """Puts a shell script on PATH."""
        path = self.file(f"bin/{name}", "#!/bin/sh\nPATH=/usr/bin:/bin\n" + script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def probe(self) -> Probe:
        """Returns a probe of this machine; its Python packages lie in ``/site``."""
        system = System(root=str(self.root), environ=self.environ, python_path=[str(self.root / "site")])
        return Probe(system)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """An empty machine: no file, no tool, no package."""
    root = tmp_path / "machine"
    root.mkdir()
    return Machine(root)


@pytest.fixture
def full_machine(machine: Machine) -> Machine:
    """A machine that has something for every block."""
    card = "/sys/devices/pci0000:00/0000:05:00.0"
    lib = "/opt/rocm/lib"
    machine.files(
        {
            "/opt/rocm/.info/version": "6.4.1-83",
            "/opt/rocm/share/hip/version": "HIP_VERSION_MAJOR=6\nHIP_VERSION_MINOR=4\nHIP_VERSION_PATCH=43483\n",
            f"{lib}/librocblas.so.4.4": "",
            f"{lib}/libhipblaslt.so.0.12": "",
            f"{lib}/librccl.so.1.0": "",
            f"{lib}/librccl-net.so": "",
            f"{lib}/libdevice_gemm_operations.so": "",
            f"{lib}/rocblas/library/x.dat": "index",
            "/opt/rocm/share/miopen/db/gfx942.db": "db",
            "/sys/module/amdgpu/version": "6.12.12",
            "/sys/module/amdgpu/parameters/noretry": "-1",
            f"{card}/vendor": "0x1002",
            f"{card}/fw_version/mec_fw_version": "0x000000a8",
            "/sys/class/kfd/kfd/topology/nodes/1/properties": "gfx_target_version 90402\nsimd_count 8\nsimd_per_cu 4\n",
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Wed\n",
            "/usr/local/cuda/version.json": '{"cuda": {"version": "12.8.0"}}',
            "/sys/class/net/eth0/operstate": "up",
            "/sys/class/infiniband/mlx5_0/fw_ver": "28.39.1002",
            "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
            "/sys/module/mlx5_ib/refcnt": "0",
            "/site/torch/__init__.py": "",
            "/site/torch/version.py": "__version__ = '2.9.0'\nhip = '6.4'\n",
            "/site/torch/lib/libaotriton_v2.so.0.10.0": "",
            "/site/torch/lib/aotriton.images/amd-gfx942/x": "",
            "/site/triton/__init__.py": "",
            "/site/triton-3.5.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: triton\nVersion: 3.5.0\n",
            "/site/fbgemm_gpu/__init__.py": "",
        }
    )
    machine.link("/sys/class/drm/card1/device", "../../../devices/pci0000:00/0000:05:00.0")
    machine.tool("nvidia-smi", 'case "$1" in -L) echo "GPU 0: A";; *) echo "0, A, GPU-1, 0, 550.54.15, 9, 80";; esac')
    machine.tool("rocminfo", "echo amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-")
    machine.environ["NCCL_PROTO"] = "Simple"
    return machine


@pytest.fixture(scope="session")
def schema_errors() -> Callable[[Any], list[str]]:
    """Returns what the schema has against a snapshot, one line a fault."""
    validator = jsonschema.Draft202012Validator(load_schema("env"))
    return lambda value: [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(value)]
