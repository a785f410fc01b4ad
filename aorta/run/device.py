"""What a trial runs on: the accelerators of this host, found without any GPU library, and the pinning of a trial.

Standard library only: the supervisor imports this before every trial.
"""

from __future__ import annotations

import os

from aorta.run.locks import DEFAULT_FOLDER, FOLDER_VARIABLE, HostLocks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

HELD_VARIABLE = "AORTA_DEVICE_HELD"
"""Names what an enclosing trial holds, as ``kind|index|identity`` separated by commas."""

_SELECTORS = {
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "cuda": ("CUDA_VISIBLE_DEVICES",),
}
"""Variables that choose devices, by kind."""


class Accelerator:
    """One GPU that a trial can use.

    Attributes:
        kind: ``rocm`` or ``cuda``.
        index: Its number on the host, or None if only its name is known.
        identity: A name that stays the same whatever is visible, such as ``GPU-6f9d1e2a4c80b735``.
        selector: What chooses it in ``HIP_VISIBLE_DEVICES`` or ``CUDA_VISIBLE_DEVICES``, given the environment it
            was found under.
    """

    __slots__ = ("identity", "index", "kind", "selector")

    def __init__(self, kind: str, index: int | None, identity: str, selector: str) -> None:
        self.kind = kind
        self.index = index
        self.identity = identity
        self.selector = selector


class Held:
    """What a trial holds.

    Attributes:
        devices: ``kind``, ``index`` and ``identity`` of each, as the record has them; local rank n uses the n-th.
        variables: Environment variables that pin the workers.
    """

    def __init__(
        self, devices: list[dict[str, Any]], variables: dict[str, str], locks: HostLocks | None = None
    ) -> None:
        self.devices = devices
        self.variables = variables
        self._locks = locks

    @property
    def device(self) -> dict[str, Any]:
        """The first of the devices."""
        return self.devices[0]

    def release(self) -> None:
        """Lets go of the devices."""
        if self._locks is not None:
            self._locks.release()


def count_accelerators(env: Mapping[str, str] | None = None, root: str = "/") -> int:
    """Returns the number of GPUs that a trial could be pinned to.

    Args:
        env: Environment whose ``*_VISIBLE_DEVICES`` count; None for this process's own.
        root: Folder that stands for ``/``.
    """
    return len(find_accelerators(os.environ if env is None else env, root))


def find_accelerators(env: Mapping[str, str], root: str = "/") -> list[Accelerator]:
    """Returns the GPUs that are visible under ``env``: AMD's if there are any, else NVIDIA's.

    Args:
        env: Environment whose ``*_VISIBLE_DEVICES`` count.
        root: Folder that stands for ``/``.
    """
    found = _amd(root)
    if found:
        rocr = env.get("ROCR_VISIBLE_DEVICES")
        if rocr is not None:
            # HIP counts what ROCr shows it.
            kept = _chosen(rocr, found)
            found = [Accelerator("rocm", gpu.index, gpu.identity, str(place)) for place, gpu in enumerate(kept)]
        hip = env.get("HIP_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES"))
        return found if hip is None else _chosen(hip, found)
    found = _nvidia(root)
    visible = env.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else _chosen(visible, found)


def _chosen(visible: str, devices: Sequence[Accelerator]) -> list[Accelerator]:
    """Applies a ``*_VISIBLE_DEVICES`` value; as in the runtimes, an entry that names no device hides what follows."""
    chosen: list[Accelerator] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdigit():
            if int(entry) >= len(devices):
                break
            device = devices[int(entry)]
        elif entry.startswith("MIG-") and devices:
            device = Accelerator("cuda", None, entry, entry)
        else:
            matches = [gpu for gpu in devices if entry and gpu.identity.lower().startswith(entry.lower())]
            if len(matches) != 1:
                break
            device = matches[0]
        chosen.append(Accelerator(device.kind, device.index, device.identity, entry))
    return chosen


def _amd(root: str) -> list[Accelerator]:
    """Returns the GPUs that the kernel's compute driver lists, in its order, which is also the runtime's."""
    nodes = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    try:
        names = sorted((name for name in os.listdir(nodes) if name.isdigit()), key=int)
    except OSError:
        return []
    found: list[Accelerator] = []
    for name in names:
        facts = _properties(os.path.join(nodes, name, "properties"))
        if not facts.get("simd_count"):
            continue  # a CPU
        minor = facts.get("drm_render_minor", 0)
        if minor > 0 and not os.path.exists(os.path.join(root, f"dev/dri/renderD{minor}")):
            continue  # a container's share of the host's GPUs
        unique = facts.get("unique_id", 0)
        place = f"{facts.get('domain', 0):04x}:{facts.get('location_id', 0):04x}"
        identity = f"GPU-{unique:016x}" if unique else f"PCI-{place}"
        found.append(Accelerator("rocm", len(found), identity, str(len(found))))
    return found


def _properties(path: str) -> dict[str, int]:
    """Returns the numbers in a KFD properties file; a node that this process may not use has none."""
    facts: dict[str, int] = {}
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.strip().partition(" ")
                if value.isdigit():
                    facts[name] = int(value)
    except OSError:
        return {}
    return facts


def _nvidia(root: str) -> list[Accelerator]:
    folder = os.path.join(root, "proc/driver/nvidia/gpus")
    try:
        # Sorted by PCI address, as the runtime counts identical GPUs.
        identities = [_nvidia_uuid(os.path.join(folder, name, "information")) for name in sorted(os.listdir(folder))]
    except OSError:
        identities = []
    if not identities:
        # Sandboxed containers show the device files only.
        try:
            entries = os.listdir(os.path.join(root, "dev"))
        except OSError:
            entries = []
        identities = [None for entry in entries if entry.startswith("nvidia") and entry[6:].isdigit()]
    return [Accelerator("cuda", i, uuid or f"nvidia{i}", uuid or str(i)) for i, uuid in enumerate(identities)]


def _nvidia_uuid(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "GPU UUID" and value.strip().startswith("GPU-") and "?" not in value:
                    return value.strip()
    except OSError:
        pass
    return None


def hold(
    env: Mapping[str, str],
    overlay: Mapping[str, str],
    *,
    count: int,
    slots: int,
    lock: bool,
    token: str,
    pause: Callable[[float], None],
    notify: Callable[[str], None],
    root: str = "/",
) -> Held:
    """Waits until the trial has what it runs on.

    A free accelerator, to which the worker is then pinned; or those that the cell's overlay chooses itself; or, on a
    host without any, one of ``slots`` slots. A trial inside a trial uses what the outer one holds.

    Args:
        env: The worker's environment without the overlay.
        overlay: The cell's variables.
        count: Accelerators that the trial takes.
        slots: Trials that may run side by side on a host without accelerators.
        lock: Whether to lock and pin at all; without, the trial sees what this process sees.
        token: Marks the trial's processes.
        pause: Waits for the given seconds; may raise to end the wait.
        notify: Takes a sentence about a long wait.
        root: Folder that stands for ``/``.

    Raises:
        aorta.run.locks.LockError: The locks cannot be used.
    """
    enclosing = env.get(HELD_VARIABLE)
    if enclosing:
        return Held(_from_held(enclosing), {})
    devices = find_accelerators(env, root)
    kind = devices[0].kind if devices else "cpu"
    own = any(name in overlay for name in _SELECTORS.get(kind, ()))
    if own:
        devices = find_accelerators({**env, **overlay}, root)
    if not devices:
        # Also where the overlay hides every accelerator: the trial then runs on the CPU.
        locks, _names = _take(env, [f"cpu-{slot}" for slot in range(max(1, slots))], 1, lock, token, pause, notify)
        device: dict[str, Any] = {"kind": "cpu", "index": None, "identity": _cpu_model(root)}
        return Held([device], {HELD_VARIABLE: _to_held([device])}, locks)
    if not lock:
        # Which of several a workload without ranks takes, only it knows; ranks take theirs in order.
        known = devices if len(devices) == 1 or count > 1 else [Accelerator(kind, None, "", "")]
        seen = [{"kind": kind, "index": gpu.index, "identity": gpu.identity or None} for gpu in known]
        return Held(seen, {HELD_VARIABLE: _to_held(seen)})
    by_name = {f"{device.kind}-{device.identity}": device for device in devices}
    # Sorted when all are wanted, so that two trials that share some do not wait for each other in turn.
    names = sorted(by_name) if own else list(by_name)
    # Fewer than asked for is the workload's to judge: its ranks may share one, or compute on the CPU.
    wanted = len(names) if own else min(count, len(names))
    locks, held = _take(env, names, wanted, lock, token, pause, notify)
    chosen = [by_name[name] for name in held]
    records = [{"kind": gpu.kind, "index": gpu.index, "identity": gpu.identity} for gpu in chosen]
    variables = {HELD_VARIABLE: _to_held(records)}
    if not own:
        selection = ",".join(gpu.selector for gpu in chosen)
        variables["HIP_VISIBLE_DEVICES" if kind == "rocm" else "CUDA_VISIBLE_DEVICES"] = selection
        if kind == "rocm" and "CUDA_VISIBLE_DEVICES" in env:
            variables["CUDA_VISIBLE_DEVICES"] = selection  # HIP reads both; they must agree
    return Held(records, variables, locks)


def _take(
    env: Mapping[str, str],
    names: Sequence[str],
    count: int,
    lock: bool,
    token: str,
    pause: Callable[[float], None],
    notify: Callable[[str], None],
) -> tuple[HostLocks | None, list[str]]:
    if not lock:
        return None, list(names[:count])
    locks = HostLocks(env.get(FOLDER_VARIABLE) or DEFAULT_FOLDER, token)
    return locks, locks.acquire(names, count, pause=pause, notify=notify)


def _to_held(devices: Sequence[Mapping[str, Any]]) -> str:
    return ",".join(
        "|".join("" if device[key] is None else str(device[key]) for key in ("kind", "index", "identity"))
        for device in devices
    )


def _from_held(value: str) -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = []
    for entry in value.split(","):
        kind, _, rest = entry.partition("|")
        index, _, identity = rest.partition("|")
        known = kind if kind in ("cpu", "cuda", "rocm") else "cpu"
        devices.append({"kind": known, "index": int(index) if index.isdigit() else None, "identity": identity or None})
    return devices


def _cpu_model(root: str) -> str | None:
    """Returns the processor's name, from the first entry only: a large host's whole list takes milliseconds."""
    try:
        with open(os.path.join(root, "proc/cpuinfo"), "rb") as file:
            for line in file.read(4096).decode("ascii", "replace").splitlines():
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip().replace(",", " ") or None
    except OSError:
        pass
    return None
