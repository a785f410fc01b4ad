"""Keeps the files that a run's names came from beside its results, and tells how to run it again with them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aorta._jsonio import NotRegularError, read_regular, write_text_atomic
from aorta.plan.model import Plan
from aorta.plan.paths import RunLayout
from aorta.registry.files import UnreadableFileError, read_limited
from aorta.registry.registry import INLINE_PREFIX

FOLDER = "sidecars"
INLINE_FILE = "inline_environments.sidecar.json"


def copy_names(paths: Sequence[str | Path]) -> list[str]:
    """Returns the name under which a run keeps each sidecar: its own, numbered where two files share one.

    Args:
        paths: The files, in the order in which they were given.
    """
    taken: set[str] = set()
    own = {Path(path).name for path in paths}
    names = []
    for path in map(Path, paths):
        name, number = path.name, 1
        while name in taken or (number > 1 and name in own):
            number += 1
            name = f"{path.stem}-{number}{path.suffix}"
        taken.add(name)
        names.append(name)
    return names


def keep_sidecars(layout: RunLayout, paths: Sequence[Path]) -> None:
    """Copies sidecar files into the run directory; a copy that is up to date is left alone.

    Args:
        layout: The run directory.
        paths: The files that the plan was made with.

    Raises:
        OSError: A file cannot be read any more, or the copy cannot be written.
    """
    for path, name in zip(paths, copy_names(paths), strict=True):
        target = layout.run_dir / FOLDER / name
        target.parent.mkdir(exist_ok=True)
        try:
            content = read_limited(path).decode("utf-8")
        except UnreadableFileError as error:
            raise OSError(0, str(error), str(path)) from error
        _write_if_changed(target, content)


def keep_inline_environments(layout: RunLayout, plan: Plan) -> None:
    """Writes the environments that the recipe named by image, in the form of a sidecar; nothing if there are none.

    Raises:
        OSError: The file cannot be written.
    """
    environments = {
        name: _as_sidecar(descriptor)
        for name, descriptor in sorted(plan.environments.items())
        if name.startswith(INLINE_PREFIX)
    }
    if environments:
        content = {"version": 1, "environments": environments}
        _write_if_changed(layout.run_dir / INLINE_FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def rerun_command(layout: RunLayout, plan: Plan) -> str | None:
    """Returns the command that runs the recipe again from the run directory alone, or None without sidecars.

    Args:
        layout: The run directory.
        plan: Its plan.
    """
    if not plan.sidecars:
        return None
    if plan.command is not None:
        # A command runs where the sweep is started.
        lines = [f"cd {shlex.quote(plan.command['cwd'])} && aorta sweep run --recipe {shlex.quote(str(layout.recipe))}"]
        kept = [str(layout.run_dir / FOLDER / name) for name in copy_names(plan.sidecars)]
        lines += [f"  --mitigations-file {shlex.quote(path)}" for path in kept]
        return " \\\n".join([*lines, f"  -- {shlex.join(plan.command['argv'])}"])
    lines = [f"cd {shlex.quote(str(layout.run_dir))} && aorta sweep run --recipe {layout.recipe.name}"]
    lines += [f"  --mitigations-file {shlex.quote(f'{FOLDER}/{name}')}" for name in copy_names(plan.sidecars)]
    return " \\\n".join(lines)


def _as_sidecar(descriptor: Mapping[str, Any]) -> dict[str, Any]:
    return {key: descriptor[key] for key in ("docker", "env") if descriptor.get(key)}


def _write_if_changed(path: Path, content: str) -> None:
    try:
        if read_regular(path) == content.encode("utf-8"):
            return
    except (OSError, NotRegularError):
        pass
    write_text_atomic(path, content)
