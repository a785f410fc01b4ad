"""Imports PyTorch in a process of its own and prints what only a loaded PyTorch knows.

Run by path, with the search path to use as a JSON list in its first argument. It makes no device context: a snapshot
must not take memory on a GPU that a trial is being timed on.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MARK = "aorta-torch-runtime "


def _questions(torch: Any) -> dict[str, dict[str, Callable[[], Any]]]:
    """What to ask, by the field of the ``pytorch`` block that the answers go into.

    Every attribute is looked up only when its question is asked: an older PyTorch lacks some.
    """
    backends, cuda = torch.backends, torch.cuda
    return {
        "flags": {
            "matmul_allow_tf32": lambda: backends.cuda.matmul.allow_tf32,
            "matmul_allow_bf16_reduced_precision_reduction": lambda: (
                backends.cuda.matmul.allow_bf16_reduced_precision_reduction
            ),
            "matmul_allow_fp16_reduced_precision_reduction": lambda: (
                backends.cuda.matmul.allow_fp16_reduced_precision_reduction
            ),
            "float32_matmul_precision": lambda: torch.get_float32_matmul_precision(),
            "cudnn_allow_tf32": lambda: backends.cudnn.allow_tf32,
            "cudnn_enabled": lambda: backends.cudnn.enabled,
            "cudnn_benchmark": lambda: backends.cudnn.benchmark,
            "cudnn_deterministic": lambda: backends.cudnn.deterministic,
            "deterministic_algorithms": lambda: torch.are_deterministic_algorithms_enabled(),
            "deterministic_algorithms_warn_only": lambda: torch.is_deterministic_algorithms_warn_only_enabled(),
            "deterministic_fill_uninitialized_memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,
            "preferred_blas": lambda: str(backends.cuda.preferred_blas_library()),
            "preferred_linalg": lambda: str(backends.cuda.preferred_linalg_library()),
            "default_dtype": lambda: str(torch.get_default_dtype()),
            "num_threads": lambda: torch.get_num_threads(),
            "num_interop_threads": lambda: torch.get_num_interop_threads(),
        },
        "sdpa_backends": {
            "flash": lambda: backends.cuda.flash_sdp_enabled(),
            "mem_efficient": lambda: backends.cuda.mem_efficient_sdp_enabled(),
            "math": lambda: backends.cuda.math_sdp_enabled(),
            "cudnn": lambda: backends.cuda.cudnn_sdp_enabled(),
            "preferred_rocm_fa": lambda: (
                str(backends.cuda.preferred_rocm_fa_library()) if torch.version.hip is not None else None
            ),
        },
        "runtime": {
            "version": lambda: str(torch.__version__),
            "build_configuration": lambda: torch.__config__.show().strip(),
            "cxx11_abi": lambda: bool(torch.compiled_with_cxx11_abi()),
            "cpu_capability": lambda: backends.cpu.get_cpu_capability(),
            "gpu_available": lambda: cuda.is_available(),
            "gpu_count": lambda: cuda.device_count(),
            "gpu_archs": lambda: cuda.get_arch_list(),
            "cudnn_version": lambda: backends.cudnn.version(),
            "nccl_version": lambda: _nccl_version(torch),
            "distributed_backends": lambda: _distributed_backends(torch),
        },
    }


def _nccl_version(torch: Any) -> str | None:
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    version = torch.cuda.nccl.version()
    return ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)


def _distributed_backends(torch: Any) -> list[str]:
    distributed = torch.distributed
    if not distributed.is_available():
        return []
    return [name for name in ("gloo", "nccl", "mpi", "ucc") if getattr(distributed, f"is_{name}_available")()]


def main() -> None:
    """Prints one marked line of JSON: each question's answer, and the reason for each that has none."""
    sys.path[:] = json.loads(sys.argv[1])
    # Counting devices through the management library instead of a context.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    answers: dict[str, Any] = {"unanswered": {}}
    for field, questions in _questions(torch).items():
        answers[field] = {}
        for name, ask in questions.items():
            try:
                answers[field][name] = ask()
            except Exception as error:  # an older or newer PyTorch lacks some of these
                answers[field][name] = None
                answers["unanswered"][f"{field}.{name}"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
    sys.stdout.write("\n" + MARK + json.dumps(answers, default=str) + "\n")
    sys.stdout.flush()
    # Past PyTorch's own exit handlers, which can hang or crash on a broken device after the answer is out.
    os._exit(0)


if __name__ == "__main__":
    main()
