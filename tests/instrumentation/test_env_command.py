"""aorta env probe."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aorta.cli import main
from aorta.instrumentation import collect_env
from aorta.instrumentation._shape import BLOCKS
from aorta.instrumentation._view import UnknownFieldError, field_value, render_reasons, render_summary
from tests.instrumentation.conftest import Machine, through_fifo

SchemaErrors = Callable[[Any], list[str]]


def probe(*arguments: str) -> Result:
    """Runs the command without PyTorch."""
    return CliRunner().invoke(main, ["env", "probe", "--no-torch", *arguments])


def test_json_by_default(schema_errors: SchemaErrors) -> None:
    """Standard output is the snapshot alone."""
    result = probe()
    assert (result.exit_code, schema_errors(json.loads(result.stdout))) == (0, [])


def test_a_file(tmp_path: Path, schema_errors: SchemaErrors) -> None:
    """-o writes the file and prints nothing."""
    result = probe("-o", str(tmp_path / "env.json"))
    assert (result.exit_code, result.output) == (0, "")
    assert schema_errors(json.loads((tmp_path / "env.json").read_text("utf-8"))) == []


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """The path and the cause are named."""
    result = probe("-o", str(tmp_path / "no" / "env.json"))
    assert result.exit_code == 1
    assert "no/env.json: cannot be written: No such file or directory" in result.stderr


def test_a_pipe_is_written_to_and_stays(tmp_path: Path, schema_errors: SchemaErrors) -> None:
    """Renaming a file over a pipe or a device would replace it for everybody."""
    pipe = tmp_path / "pipe"
    with through_fifo(pipe) as received:
        assert probe("-o", str(pipe)).exit_code == 0
    assert schema_errors(json.loads(received[0])) == []
    assert pipe.is_fifo()


@pytest.mark.parametrize("content", ["old", None])
def test_a_link_stays_and_its_target_is_written(
    tmp_path: Path, schema_errors: SchemaErrors, content: str | None
) -> None:
    """Whether the target is there already or not, and in another folder."""
    target = tmp_path / "elsewhere" / "env.json"
    target.parent.mkdir()
    if content is not None:
        target.write_text(content)
    link = tmp_path / "link"
    link.symlink_to("elsewhere/env.json")
    assert probe("-o", str(link)).exit_code == 0
    assert os.readlink(link) == "elsewhere/env.json"
    assert schema_errors(json.loads(target.read_text("utf-8"))) == []
    assert [path.name for path in target.parent.iterdir()] == ["env.json"]


def test_a_link_to_an_open_file_without_a_path_is_written_to(tmp_path: Path) -> None:
    """As /dev/stdout is: what it leads to has no name that could be replaced."""
    with (tmp_path / "gone").open("w+b") as file:
        (tmp_path / "gone").unlink()
        link = tmp_path / "link"
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")
        assert probe("-o", str(link)).exit_code == 0
        assert json.loads(file.read())["schema_version"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_link_in_a_circle_is_an_error(tmp_path: Path) -> None:
    """And no traceback."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    result = probe("-o", str(tmp_path / "a"))
    assert result.exit_code == 1
    assert "a: cannot be written: Too many levels of symbolic links" in result.stderr


def test_an_empty_name_is_refused() -> None:
    """As a path it would be the current folder."""
    result = probe("-o", "")
    assert result.exit_code == 2
    assert "is empty; name a path" in result.stderr


def test_one_field() -> None:
    """Text comes bare, everything else as JSON."""
    import platform

    assert probe("--field", "python.version").stdout == platform.python_version() + "\n"
    assert probe("--field", "python.available").stdout == "true\n"


def test_a_field_that_is_not_there_exits_2_with_the_nearest() -> None:
    """A typing mistake is answered with what was meant."""
    result = probe("--field", "python.versoin")
    assert result.exit_code == 2
    assert "no field 'python.versoin'; nearest: python.version" in result.stderr


def test_a_field_of_an_absent_block_says_why(machine: Machine) -> None:
    """The reason for the absence is more use than a similar name."""
    snapshot = collect_env(False, root=str(machine.root), environ={}, python_path=[])
    with pytest.raises(UnknownFieldError, match="since rocm is absent: no ROCm installation"):
        field_value(snapshot, "rocm.version")


def test_keys_with_dots_and_list_items() -> None:
    """A package's dotted name and an item's number are both reachable."""
    snapshot = {"python": {"packages": {"ruamel.yaml": "0.18"}}, "nics": {"interfaces": [{"driver": "mlx5_core"}]}}
    assert field_value(snapshot, "python.packages.ruamel.yaml") == "0.18"
    assert field_value(snapshot, "nics.interfaces.0.driver") == "mlx5_core"


@pytest.mark.parametrize("path", ["", ".", "python.", "nics.interfaces.9", "nics.interfaces.-1", "python.packages.x"])
def test_odd_paths_are_unknown(path: str) -> None:
    """No path outside the snapshot is found."""
    with pytest.raises(UnknownFieldError):
        field_value({"python": {"packages": {}}, "nics": {"interfaces": [1]}}, path)


def test_the_summary_has_a_line_for_every_block() -> None:
    """Absent blocks are shown with their reason."""
    lines = probe("--summary").stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : len(BLOCKS) + 1]] == list(BLOCKS)


def test_reasons_go_to_standard_error() -> None:
    """-v adds the reasons without touching the output."""
    snapshot = json.loads(probe("-v").stdout)
    absent = [name for name in BLOCKS if not snapshot[name]["available"]]
    assert all(f"{name}: {snapshot[name]['reason']}\n" in render_reasons(snapshot) for name in absent)
    assert "pytorch.flags: PyTorch was not imported" in probe("-v").stderr


def test_the_forms_exclude_each_other() -> None:
    """Two outputs at once are refused."""
    assert probe("--summary", "--field", "host").exit_code == 2


def test_the_summary_of_a_full_machine(full_machine: Machine) -> None:
    """Present devices and libraries are summarised from their own blocks."""
    machine = full_machine
    site = [str(machine.root / "site")]
    snapshot = collect_env(False, root=str(machine.root), environ=machine.environ, python_path=site)
    text = " ".join(render_summary(snapshot).split())
    for part in (
        "rocm 6.4.1-83, /opt/rocm",
        "rocblas version unknown, 1 copy, rocm",
        "rocm:rocblas: 1 file",
        "amdgpu_driver 6.12.12, 1 device",
        "gpu_arch 1 device, gfx942:sramecc+:xnack-",
        "pytorch 2.9.0, rocm",
        "driver 550.54.15, 1 x A, CUDA toolkit 12.8.0",
        "mlx5_0 (RDMA, firmware 28.39.1002)",
        "NCCL_PROTO=Simple",
    ):
        assert part in text
