"""What recipes can name, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aorta.registry import load_registry
from aorta.registry.workloads import workload_names
from tests.cli.conftest import Aorta


@pytest.fixture
def sidecar(tmp_path: Path) -> str:
    path = tmp_path / "site.json"
    content = {
        "version": 1,
        "mitigations": {"site_fix": {"SITE": "1", "OTHER": "a b"}},
        "environments": {"site_box": {"docker": "acme/box:2"}},
    }
    path.write_text(json.dumps(content), "utf-8")
    return str(path)


@pytest.mark.parametrize(
    "words", [("sweep", "list-mitigations"), ("mitigations", "list"), ("triage", "list-mitigations")]
)
def test_mitigations_as_json(aorta: Aorta, words: tuple[str, ...]) -> None:
    """Each command gives every mitigation with its variables and its source."""
    rows = json.loads(aorta(*words, "--json").stdout)
    expected = load_registry().mitigations
    assert {row["name"]: row["env"] for row in rows} == {name: dict(item.env) for name, item in expected.items()}
    assert {row["source"] for row in rows if row["name"] == "tf32_off"} == {"aorta"}


@pytest.mark.parametrize(
    "words", [("sweep", "list-environments"), ("environments", "list"), ("triage", "list-environments")]
)
def test_environments_as_json(aorta: Aorta, words: tuple[str, ...]) -> None:
    """Each command gives every environment with its fields."""
    rows = {row["name"]: row for row in json.loads(aorta(*words, "--json").stdout)}
    assert set(rows) == set(load_registry().environments)
    assert rows["emulated-rocjitsu"]["mirage_profile"] == "mi350x"


def test_workloads_as_json(aorta: Aorta) -> None:
    """Name, class and metadata of every registered workload."""
    rows = {row["name"]: row for row in json.loads(aorta("sweep", "list-workloads", "--json").stdout)}
    assert tuple(sorted(rows)) == workload_names()
    assert rows["training"]["launch_mode"] == "distributed"
    assert rows["gpu_smoke"]["class"] == "aorta.workloads.gpu_smoke:GpuSmokeWorkload"


def test_a_sidecar_s_names_are_listed_with_their_source(aorta: Aorta, sidecar: str) -> None:
    """--mitigations-file and --file take the same sidecars; a value is shown as it is."""
    tables = [
        aorta("sweep", "list-mitigations", "--mitigations-file", sidecar).stdout,
        aorta("mitigations", "list", "--file", sidecar).stdout,
    ]
    assert tables[0] == tables[1]
    (line,) = [line for line in tables[0].splitlines() if line.startswith("site_fix")]
    assert line.split(maxsplit=2)[1:] == ["site.json", "SITE=1 OTHER=a b"]
    boxes = aorta("environments", "list", "--file", sidecar).stdout
    assert "site_box" in boxes and "docker: acme/box:2" in boxes


@pytest.mark.parametrize(
    "words", [("sweep", "list-mitigations", "--mitigations-file"), ("environments", "list", "--file")]
)
def test_a_bad_sidecar_is_refused(aorta: Aorta, words: tuple[str, ...], tmp_path: Path) -> None:
    """Exit code 2, one line that names the file and the fault."""
    (tmp_path / "bad.json").write_text('{"version": 2}')
    ended = aorta(*words, str(tmp_path / "bad.json"))
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "bad.json: version: must be the whole number 1" in ended.stderr
