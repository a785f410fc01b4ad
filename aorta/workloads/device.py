"""Where a workload computes. ROCm devices go by the name ``cuda`` in torch, and so they do here.

Imports torch; import this module from ``setup()`` or ``run()``.
"""

from __future__ import annotations

from typing import Literal

import torch

from aorta.text import plural

DeviceName = Literal["auto", "cuda", "cpu"]


def choose_device(name: DeviceName, local_rank: int = 0) -> torch.device:
    """Picks this rank's device and makes it the current one.

    Assumes a launcher that shows a process either the devices of all local ranks, in order (torchrun), or
    its own device only (``srun --gpus-per-task=1``).

    Args:
        name: ``auto`` takes an accelerator if there is one, else the CPU.
        local_rank: Number of the process on its host.

    Raises:
        RuntimeError: An accelerator was asked for and torch sees none, or fewer than local ranks.
    """
    count = torch.cuda.device_count() if name != "cpu" else 0
    if count == 0:
        if name == "cuda":
            raise RuntimeError(
                f"workload_config.device is 'cuda', but torch {torch.__version__} sees no CUDA or ROCm device; "
                "check the driver, the torch build and HIP_VISIBLE_DEVICES / CUDA_VISIBLE_DEVICES, "
                "or set device: auto or cpu"
            )
        return torch.device("cpu")
    index = 0 if count == 1 else local_rank
    if index >= count:
        raise RuntimeError(
            f"LOCAL_RANK is {local_rank}, but this process sees {plural(count, 'device')}; start at most "
            f"{plural(count, 'rank')} a host"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def device_title(device: torch.device) -> str:
    """Returns the product name of an accelerator, or ``cpu``."""
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else "cpu"


def synchronize(device: torch.device) -> None:
    """Waits until the work queued on the device is done; nothing to do on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
