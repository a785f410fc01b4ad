"""What layer_numerics is told to measure: settings have an order, and wrong ones are warned about by their place."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from aorta.instrumentation.layer_numerics.__main__ import main
from aorta.instrumentation.layer_numerics.spec import read_spec


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("{", "NANLOG_SPEC: Expecting property name"),
        ("[]", "NANLOG_SPEC: must be a JSON object"),
        ('{"sample_every": 0}', "NANLOG_SPEC.sample_every: must be a whole number"),
        ('{"wacht": []}', "NANLOG_SPEC.wacht: is not known here"),
        ('{"watch": [{"tensors": "output"}]}', "NANLOG_SPEC.watch[0].tensors: must be a list of input"),
        ('{"watch": [{"tensors": ["ouput"]}]}', "NANLOG_SPEC.watch[0].tensors[0]: must be one of input"),
        ('{"watch": [{"scope": {"names": ["a", 3]}}]}', "NANLOG_SPEC.watch[0].scope.names[1]: must be a name"),
        ('{"watch": [{"scope": "layers"}]}', "NANLOG_SPEC.watch[0].scope: must be an object"),
        ('{"watch": 3}', "NANLOG_SPEC.watch: must be a list"),
        ('{"watch": [3]}', "NANLOG_SPEC.watch[0]: must be an object"),
        ('{"follow": [{"at": "stage"}]}', "NANLOG_SPEC.follow[0].tensor: must be the name"),
        ('{"follow": [{"tensor": "x", "bounds": 3}]}', "NANLOG_SPEC.follow[0].bounds: must be a list"),
        ('{"follow": [3]}', "NANLOG_SPEC.follow[0]: must be an object"),
        ('{"follow": [{"tensor": "x", "bounds": [60, 0]}]}', "NANLOG_SPEC.follow[0].bounds: must be a list"),
        ('{"diagnostics": ["locat"]}', "NANLOG_SPEC.diagnostics[0]: must be one of addr"),
        (f'{{"huge": 1{"0" * 400}}}', "NANLOG_SPEC.huge: must be a number above 0"),
    ],
)
def test_a_wrong_spec_warns(text: str, warning: str) -> None:
    """By its place, once; the rest holds."""
    warnings: list[str] = []
    spec = read_spec(None, {"NANLOG_SPEC": text}, warnings.append)
    assert len(warnings) == 1 and warnings[0].startswith(warning)
    assert spec.sample_every == 1


def test_what_is_right_in_a_list_holds() -> None:
    """Only the items that are wrong are left out, each with a warning."""
    warnings: list[str] = []
    text = """{"watch": [3, {"tensors": ["output", "bad"], "scope": {"names": ["a", 1], "types": ["B", null]}}],
               "follow": [{}, {"tensor": "x", "pipeline": 1}], "diagnostics": ["locate", "locat"]}"""
    spec = read_spec(None, {"NANLOG_SPEC": text}, warnings.append)
    assert [(one.tensors, one.scope.names, one.scope.types) for one in spec.watch] == [(("output",), ("a",), ("B",))]
    assert ([one.tensor for one in spec.follow], spec.diagnostics) == (["x"], {"locate"})
    assert len(warnings) == 7
    assert warnings[-1].endswith("not 'locat'; did you mean 'locate'?; left out")


@pytest.mark.parametrize("name", ["NANLOG_SAMPLE_EVERY", "NANLOG_PRE_CONTEXT", "NANLOG_WATCH_NAMES"])
def test_a_wrong_variable_is_named(name: str) -> None:
    """As the user has written it."""
    warnings: list[str] = []
    read_spec(None, {name: "," if name.endswith("NAMES") else "-3"}, warnings.append)
    assert len(warnings) == 1 and warnings[0].startswith(f"{name}: must be ")


def test_sources_have_an_order(tmp_path: Path) -> None:
    """--config, NANLOG_SPEC_FILE, NANLOG_SPEC, flat variables; NANLOG_DIR goes with each."""
    for name, value in (("a", 2), ("b", 3)):
        (tmp_path / name).write_text(json.dumps({"sample_every": value}))
    env = {
        "NANLOG_SPEC_FILE": str(tmp_path / "b"),
        "NANLOG_SPEC": '{"sample_every": 4}',
        "NANLOG_SAMPLE_EVERY": "5",
        "NANLOG_WATCH_NAMES": "layers.*, head",
        "NANLOG_DIR": "there",
    }
    found = [read_spec(str(tmp_path / "a"), env, pytest.fail)]
    for name in ("NANLOG_SPEC_FILE", "NANLOG_SPEC"):
        found.append(read_spec(None, env, pytest.fail))
        del env[name]
    found.append(read_spec(None, env, pytest.fail))
    assert [spec.sample_every for spec in found] == [2, 3, 4, 5]
    assert {spec.folder for spec in found} == {"there"}
    assert found[-1].watch[0].scope.names == ("layers.*", "head")


@pytest.mark.parametrize(
    ("setting", "arguments", "warning"),
    [
        ({"NANLOG_SPEC": "{bad"}, [], "NANLOG_SPEC: "),
        ({"NANLOG_SPEC": '{"wacht": []}'}, [], "NANLOG_SPEC.wacht: is not known here; did you mean 'watch'?"),
        ({"NANLOG_SAMPLE_EVERY": "-3"}, [], "NANLOG_SAMPLE_EVERY: must be a whole number"),
        ({"NANLOG_SAMPLE_EVRY": "3"}, [], "NANLOG_SAMPLE_EVRY: is not known here; did you mean 'NANLOG_SAMPLE_EVERY'?"),
        ({"RANK": "one"}, [], "RANK: must be a whole number, not 'one'"),
        ({}, ["--config", "nowhere.json"], "nowhere.json: [Errno 2] No such file"),
    ],
)
def test_bad_settings_are_in_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    setting: dict[str, str], arguments: list[str], warning: str,
) -> None:  # fmt: skip
    """Who reads only the summary learns that it is not what was asked for."""
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\n")
    for name, value in {"NANLOG_DIR": str(tmp_path / "out"), **setting}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main([*arguments, str(script)]) == 0
    warnings = json.loads((tmp_path / "out" / "summary_rank0.json").read_text())["warnings"]
    assert len(warnings) == 1 and warnings[0].startswith(warning)
    assert capsys.readouterr().err == f"layer_numerics: {warnings[0]}\n"
