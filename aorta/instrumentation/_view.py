"""A snapshot for people: a summary table, one field by its dotted path, and the list of what is missing."""

from __future__ import annotations

import difflib
import json

from aorta.instrumentation._shape import BLOCKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any


class UnknownFieldError(LookupError):
    """A dotted path that the snapshot does not have.

    Attributes:
        nearest: Existing paths that resemble it, the most similar first.
    """

    def __init__(self, path: str, nearest: list[str], absent: str = "") -> None:
        hint = f"; nearest: {', '.join(nearest)}" if nearest else ""
        super().__init__(f"the snapshot has no field {path!r}{absent}{hint}")
        self.nearest = nearest


def field_value(snapshot: Mapping[str, Any], path: str) -> Any:
    """Returns the value at a dotted path; list items go by number, and a key may itself hold dots.

    Args:
        snapshot: A snapshot.
        path: Such as ``pytorch.version``, ``nics.interfaces.0.driver`` or ``python.packages.ruamel.yaml``.

    Raises:
        UnknownFieldError: There is no such field.
    """
    found, value = _resolve(snapshot, path.split("."))
    if found:
        return value
    known = list(dict.fromkeys(_paths(snapshot)))
    nearest = difflib.get_close_matches(path, known, n=3, cutoff=0.5)
    last = path.rsplit(".", 1)[-1]
    nearest += [name for name in known if name.rsplit(".", 1)[-1] == last and name not in nearest]
    name = path.split(".")[0]
    block = snapshot.get(name)
    absent = isinstance(block, dict) and block.get("available") is False
    raise UnknownFieldError(
        path, nearest[:3], f", since {name} is absent: {block['reason']}" if block and absent else ""
    )


def _resolve(value: Any, parts: list[str]) -> tuple[bool, Any]:
    if not parts:
        return True, value
    if isinstance(value, list):
        if parts[0].isdigit() and int(parts[0]) < len(value):
            return _resolve(value[int(parts[0])], parts[1:])
    elif isinstance(value, dict):
        for length in range(len(parts), 0, -1):
            key = ".".join(parts[:length])
            if key in value:
                found, inner = _resolve(value[key], parts[length:])
                if found:
                    return True, inner
    return False, None


def _paths(value: Any, prefix: str = "") -> Iterator[str]:
    if prefix:
        yield prefix
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, f"{prefix}.{key}" if prefix else str(key))


def render_value(value: Any) -> str:
    """Returns a field's value as one prints it: bare text, JSON for anything else."""
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)


def render_reasons(snapshot: Mapping[str, Any]) -> str:
    """Returns one line for everything that is absent, unknown or failed, with its reason."""
    lines = [f"partial: {reason}" for reason in snapshot.get("partial_reasons", ())]
    for name in BLOCKS:
        block = snapshot[name]
        if not block["available"]:
            lines.append(f"{name}: {block['reason']}")
        lines += [f"{name}.{field}: {reason}" for field, reason in block["missing"].items()]
    return "".join(line + "\n" for line in lines)


def render_summary(snapshot: Mapping[str, Any]) -> str:
    """Returns a table of one line a block."""
    rows = [("captured at", f"{snapshot['captured_at']}{' (partial)' if snapshot['partial'] else ''}")]
    for name in BLOCKS:
        block = snapshot[name]
        rows.append((name, _SUMMARIES[name](block) if block["available"] else f"-  {block['reason']}"))
    rows += [("partial", reason) for reason in snapshot["partial_reasons"]]
    width = max(len(label) for label, _ in rows)
    return "".join(f"{label:<{width}}  {text}\n" for label, text in rows)


def _join(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part not in (None, "", [])) or "version unknown"


def _gib(size: int | None) -> str | None:
    return None if size is None else f"{size / 2**30:.1f} GiB"


def _labelled(label: str, value: object) -> str | None:
    return None if value in (None, "", []) else f"{label} {value}"


def _copies(block: Mapping[str, Any]) -> str:
    origins = sorted({copy["origin"] for copy in block["copies"]})
    return _join(block["version"] or "version unknown", _count(len(block["copies"]), "copy", "copies"), *origins)


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _catalogues(block: Mapping[str, Any]) -> str:
    return _join(
        *(
            f"{c['origin']}: {_count(c['files'], 'file', 'files')} {(c['ends_sha256'] or '?')[:12]}"
            for c in block["catalogues"]
        )
    )


def _pytorch(block: Mapping[str, Any]) -> str:
    enabled = [name for name, on in (block["sdpa_backends"] or {}).items() if on is True]
    commit = (block["git_commit"] or "")[:12]
    return _join(block["version"], block["build"], _labelled("git", commit), _labelled("SDPA", "/".join(enabled)))


def _nvidia(block: Mapping[str, Any]) -> str:
    names = [device["name"] for device in block["devices"]]
    counted = [f"{names.count(name)} x {name}" for name in sorted(set(names), key=str)]
    toolkit = (block["toolkit"] or {}).get("version")
    return _join(_labelled("driver", block["driver_version"]), *counted, _labelled("CUDA toolkit", toolkit))


def _nics(block: Mapping[str, Any]) -> str:
    real = [f"{nic['name']} ({nic['driver']}, {nic['state']})" for nic in block["interfaces"] if nic["driver"]]
    rdma = [f"{device['name']} (RDMA, firmware {device['firmware']})" for device in block["rdma_devices"]]
    return (
        _join(*real, *rdma)
        if real or rdma
        else _count(len(block["interfaces"]), "virtual interface", "virtual interfaces")
    )


_SUMMARIES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "host": lambda b: _join(
        b["hostname"],
        _labelled("kernel", b["kernel"]),
        b["machine"],
        b["os"]["name"],
        _labelled("glibc", b["glibc"]),
        _labelled(str(b["cpu"]["logical"]), "x " + str(b["cpu"]["model"])),
        _gib(b["memory"]["total_bytes"]),
    ),
    "runtime_context": lambda b: _join(b["container"], b["container_image"], f"Python from {b['python']}"),
    "python": lambda b: _join(b["version"], b["implementation"], _count(len(b["packages"]), "package", "packages")),
    "env_vars": lambda b: (
        _join(*(f"{name}={value}" for name, value in b["set"].items()))
        if b["set"]
        else f"none of {b['names_listed']} listed names is set"
    ),
    "rocm": lambda b: _join(b["version"], b["path"]),
    "hip": lambda b: _join(b["version"], _labelled("clang", b["clang_version"])),
    "amdgpu_driver": lambda b: _join(b["version"] or "in the kernel", _count(len(b["devices"]), "device", "devices")),
    "gpu_arch": lambda b: _join(_count(len(b["devices"]), "device", "devices"), *(b["isas"] or b["archs"])),
    "hipblaslt": _copies,
    "rocblas": _copies,
    "composable_kernel": _copies,
    "tensile": _catalogues,
    "miopen": _catalogues,
    "rccl": _copies,
    "aotriton": _copies,
    "triton": lambda b: _join(b["version"], b["distribution"]),
    "fbgemm": lambda b: _join(b["version"], b["distribution"]),
    "pytorch": _pytorch,
    "nvidia": _nvidia,
    "nics": _nics,
}
