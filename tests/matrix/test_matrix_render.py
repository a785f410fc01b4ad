"""The files that people read: golden pages, and the hard cases of their text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from matrix_builders import descriptor, example_run, failure, plan, record, request, result

from aorta._resources import load_schema
from aorta.matrix import (
    Matrix,
    aggregate,
    build_matrix,
    matrix_json,
    render_html,
    render_markdown,
    render_perf,
    write_matrix,
)
from aorta.matrix.__main__ import main
from aorta.matrix.page import build_page, varying_config
from aorta.matrix.text import (
    capped,
    decimals_for,
    display_width,
    escape_markdown,
    fixed,
    markdown_table,
    one_line,
    percent,
    ranges,
)

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["matrix.html", "matrix.json", "matrix.md", "perf.md"])
def test_golden_files(tmp_path: Path, name: str) -> None:
    """The example run gives these bytes; after a wanted change, run golden.py and read the difference."""
    layout = example_run(tmp_path / "run")
    write_matrix(layout.run_dir)
    assert (layout.run_dir / name).read_text("utf-8") == (GOLDEN / name).read_text("utf-8")


def test_written_matrix_holds_against_its_schema(tmp_path: Path) -> None:
    """What tools read is what the schema promises."""
    layout = example_run(tmp_path)
    write_matrix(layout.run_dir)
    Draft202012Validator(load_schema("matrix")).validate(json.loads(layout.matrix_json.read_bytes()))


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """No clock, no set order, no trace of the first time."""
    layout = example_run(tmp_path)
    files = [layout.matrix_json, layout.matrix_md, layout.perf_md]
    write_matrix(layout.run_dir)
    first = [path.read_bytes() for path in files]
    write_matrix(layout.run_dir)
    assert [path.read_bytes() for path in files] == first


def page(requests: list[dict[str, Any]], records: list[dict[str, Any]], **fields: Any) -> str:
    return render_markdown(matrix_of(requests, records, **fields))


def matrix_of(requests: list[dict[str, Any]], records: list[dict[str, Any]], **fields: Any) -> Matrix:
    return aggregate(plan(requests, **fields), {one["cell"]: one for one in requests}, records)


def test_all_pass_is_said_in_one_sentence() -> None:
    """The shortest answer to the question that was asked."""
    cells = [request("a"), request("b")]
    text = page(cells, [record(cell, trial) for cell in cells for trial in range(4)])
    assert text.splitlines()[:3] == ["# EXAMPLE-001: training, complete", "", "**All 8 trials pass.**"]


def test_a_good_run_has_only_the_notes_that_occur() -> None:
    """No warnings, hints, errors or missing trials, so no such headings."""
    text = page([request("a")], [record(request("a"), trial) for trial in range(4)])
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Notes"]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], "No trial has finished yet."),
        (["pass"], "The only trial passes of the 4 planned."),
        (["fail", "pass"], "1 of 1 cell fails: a 1/2."),
        (["crash", "crash"], "No trial gave a verdict; all end in an error: a 2/2."),
        (["crash", "pass"], "No cell fails, but some trials end in an error: a 1/2."),
        (["crash", "fail"], "1 of 1 cell fails: a 1/2; errors: a 1/2."),
    ],
)
def test_verdict_sentence(outcomes: list[str], expected: str) -> None:
    """Which cells fail and how often, with errors told apart."""
    cell = request("a")
    text = page([cell], [record(cell, trial, outcome) for trial, outcome in enumerate(outcomes)])
    assert text.splitlines()[2] == f"**{expected}**"


def test_a_run_without_a_ticket_is_named_by_its_workload() -> None:
    """There is no 'None' in a title."""
    assert page([request("a")], [], ticket=None).startswith("# training, INCOMPLETE: 4 of 4 trials missing\n")


def test_the_page_of_a_command_says_which_command_it_was() -> None:
    """Quoted as for a shell, with the folder that it ran in; a matrix of a workload has no such part."""
    cell = request("a")
    command = {"argv": ["bash", "-c", "echo <b>"], "cwd": "/work"}
    matrix = matrix_of([cell], [record(cell)], command=command)
    Draft202012Validator(load_schema("matrix")).validate(matrix)
    assert "bash -c 'echo <b>' (in /work)" in build_page(matrix).sections[0][1][0]
    assert "<b>" not in render_html(matrix)
    assert "Command" not in dict(build_page(matrix_of([cell], [record(cell)])).sections)


def test_an_ignored_image_is_said_in_its_row() -> None:
    """A host run must not pass for a container run."""
    cells = [request("a", environment=descriptor("img", docker="acme/box:2"))]
    assert "| img (ran on host) |" in page(cells, [])


def test_an_honoured_image_is_not_remarked_on() -> None:
    """The workload starts the container itself."""
    cells = [request("a", environment=descriptor("img", docker="acme/box:2"), acts_on=["docker"])]
    assert "| img         |" in page(cells, [])


def test_config_column_shows_differences_only() -> None:
    """A key that every cell agrees on is not shown, whatever its depth."""
    cells = [
        request("a", workload_config={"model": {"kind": "mlp", "size": 8}, "seed": 1}),
        request("b", workload_config={"model": {"kind": "moe", "size": 8}, "seed": 1, "top": 2}),
    ]
    lines = page(cells, []).splitlines()
    assert lines[6].endswith("| model.kind=mlp        |")
    assert lines[7].endswith("| model.kind=moe, top=2 |")


@pytest.mark.parametrize("configs", [({}, {}), ({"x": {"y": 1}}, {"x": {"y": 1}})])
def test_config_column_is_hidden_when_cells_agree(configs: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Also when nobody configures anything."""
    cells = [request(name, workload_config=config) for name, config in zip("ab", configs, strict=True)]
    assert "Config" not in page(cells, [])


@pytest.mark.parametrize("value", [1.0, "1", True, [1], {"y": 1}, {}, None])
def test_values_of_another_type_differ(value: object) -> None:
    """1 is neither true nor the text 1 nor 1.0."""
    first, second = varying_config([{"workload_config": {"x": 1}}, {"workload_config": {"x": value}}])
    assert first == {"x": "1"} and second != first


def warned(names: str, cells: str) -> str:
    """The page of a run that is warned about some of its cells, each named by a letter."""
    warnings = tuple({"cell": name, "code": "x", "message": "HSA_XNACK is set outside"} for name in names)
    return page([request(name) for name in cells], [], warnings=warnings)


@pytest.mark.parametrize(
    ("names", "cells", "expected"),
    [
        ("ab", "abc", "a, b"),
        ("abc", "abc", "all cells"),
        ("a", "a", "a"),
        ("abcdef", "abcdefgh", "a, b, c, d, e, f"),
        ("abcdefg", "abcdefgh", "7 cells (a, b, c, ...)"),
    ],
)
def test_equal_warnings_are_one_line(names: str, cells: str, expected: str) -> None:
    """One cause, one line, with the cells that it is about, and no wall of names."""
    assert f"- {expected}: HSA_XNACK is set outside\n" in warned(names, cells)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("abcdefgh", "all cells"),
        ("abcdefg", "7 cells (a, b, c, ...)"),
        ("abcdef", "a, b, c, d, e, f"),
        ("stuvwxyz", ""),
    ],
)
def test_a_warning_that_lists_cells_itself_is_no_wall_either(listed: str, expected: str) -> None:
    """A list of other things stays."""
    names = ", ".join(listed)
    warning = {"cell": None, "code": "x", "message": f"X is set, so these inherit it: {names}; unset it"}
    text = page([request(name) for name in "abcdefgh"], [], warnings=(warning,))
    assert f"- X is set, so these inherit it: {expected or names}; unset it\n" in text


def test_web_page_has_the_same_rows_and_no_markup_from_trials() -> None:
    """What a trial says is text, never a tag."""
    cell = request("a", mitigations=["<b>"])
    crash = record(cell, 0, "crash", error=failure(message="<script>alert(1)</script>"))
    text = render_html(matrix_of([cell], [crash]))
    assert "<script>" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert '<tr class="error">' in text and "<td>&lt;b&gt;</td>" in text


def test_web_page_loads_nothing() -> None:
    """It is opened from a ticket, far from the cluster."""
    text = render_html(matrix_of([request("a")], []))
    assert not any(word in text for word in ("http:", "https:", "src=", "href=", "@import", "url("))


def test_long_lists_are_cut() -> None:
    """Never a wall: the rest is in matrix.json."""
    cell = request("a", trials=30)
    crashes = [record(cell, trial, "crash", error=failure(message=f"reason {trial}")) for trial in range(30)]
    text = page([cell], crashes)
    assert text.count("- infrastructure_failed") == 10
    assert "- and 20 more (matrix.json)\n" in text


def test_every_row_has_the_same_columns_whatever_the_text() -> None:
    """Pipes, newlines and backticks in names and settings do not break the table."""
    cells = [
        request("a", mitigations=["x|y"], workload_config={"k|`": "v\n|"}),
        request("b", environment=descriptor("e", docker="a|b\n`c`")),
    ]
    rows = [line for line in page(cells, []).splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {11}
    assert len({len(line) for line in rows}) == 1


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_stays_in_its_table_cell(text: str) -> None:
    """One row stays one line with one cell."""
    lines = markdown_table(("Title",), [(one_line(text),)])
    assert len(lines) == 3
    assert lines[2].replace("\\\\", "").replace("\\|", "").count("|") == 2


def test_escape_sequences_do_not_reach_the_terminal() -> None:
    """A trial's message must not recolour or rewrite the screen."""
    assert one_line("a\x1b[31mb\u202ec\ud800") == "a\ufffd[31mb\ufffdc\ufffd"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tf32_off", "tf32_off"),
        ("__init__", r"\_\_init\_\_"),
        ("a*b`c|d<e", r"a\*b\`c\|d\<e"),
        ("C:\\dir\\*", r"C:\dir\\\*"),
        ("see [x](http://y)", r"see [x\](http://y)"),
        ("&lt; & done", r"\&lt; & done"),
        ("[rank0]: ~5 ~~no~~", r"[rank0]: ~5 \~\~no\~\~"),
    ],
)
def test_markdown_is_escaped_where_it_would_act(text: str, expected: str) -> None:
    """And left alone where it would not, for those who read the plain text."""
    assert escape_markdown(text) == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [(None, "-"), (0.0, "0%"), (1.0, "100%"), (0.375, "37.5%"), (1 / 3000, "<0.1%"), (0.9999, ">99.9%"), (0.07, "7%")],
)
def test_percent_never_rounds_to_never_or_always(share: float | None, expected: str) -> None:
    """One failure in 3,000 is not 0%."""
    assert percent(share) == expected


@pytest.mark.parametrize(
    ("values", "decimals", "shown"),
    [([1234.5], 0, "1234"), ([12.34], 1, "12.3"), ([1.234, 900], 2, "1.23"), ([0.01234], 4, "0.0123"), ([], 0, "")],
)
def test_columns_have_three_digits_of_the_smallest(values: list[float], decimals: int, shown: str) -> None:
    """So that numbers of one column stand under each other."""
    assert decimals_for(values) == decimals
    assert not values or fixed(values[0], decimals) == shown


@pytest.mark.parametrize(("value", "expected"), [(1e-9, "1e-09"), (1e12, "1e+12"), (None, "-"), (0.0, "0.0")])
def test_numbers_out_of_scale_stay_readable(value: float | None, expected: str) -> None:
    """Neither a row of zeros nor a row of digits."""
    assert fixed(value, 1) == expected


def test_runs_of_trials_are_drawn_together() -> None:
    """2,000 missing trials are one range."""
    assert ranges([0, 2, 3, 4, 7, *range(9, 2000)]) == "0, 2-4, 7, 9-1999"


def test_wide_characters_take_two_columns() -> None:
    """Padding is by what a terminal shows."""
    assert (display_width("日本"), display_width("e\u0301")) == (4, 1)


def test_a_capped_list_says_how_much_is_hidden() -> None:
    """And where it is."""
    assert capped(["a", "b", "c"], 2) == ["a", "b", "and 1 more (matrix.json)"]


def test_metrics_that_agree_are_one_row() -> None:
    """The same device in every cell needs no table of its own."""
    cells = [request("a"), request("b")]
    records = [record(cell, 0, result=result(metrics={"device": "cpu"})) for cell in cells]
    assert "| device | (all cells) | cpu " in render_perf(matrix_of(cells, records))


def test_pages_of_an_empty_run_are_whole() -> None:
    """Before the first trial ends there is a page already."""
    text = render_perf(matrix_of([request("a")], []))
    assert "The workload reported none." in text and "| missing |" in text


@settings(deadline=None)
@given(st.text(max_size=30), st.text(min_size=1, max_size=30))
def test_pages_are_written_whatever_the_workload_says(hint: str, metric: str) -> None:
    """Any text, lone surrogates and control characters included."""
    cell = request("a")
    odd = result(passed=False, failure_details=[{"hint": hint}], metrics={metric: hint})
    matrix = matrix_of([cell], [record(cell, 0, "fail", result=odd)])
    assert render_markdown(matrix).isprintable() or "\n" in render_markdown(matrix)
    assert json.loads(matrix_json(matrix)) == matrix
    render_perf(matrix).encode()


def test_raw_series_take_one_line(tmp_path: Path) -> None:
    """A hundred thousand step times must not make a hundred thousand lines."""
    text = matrix_json(build_matrix(example_run(tmp_path).run_dir))
    assert '"step_times_ms": [20.0, 21.5, 22.0, 24.0, 20.0,' in text


def test_command_writes_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page is the output."""
    layout = example_run(tmp_path)
    assert main([str(layout.run_dir)]) == 0
    assert capsys.readouterr().out == layout.matrix_md.read_text("utf-8")


def test_quiet_command_writes_and_shows_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a rule of the workflow runs it."""
    layout = example_run(tmp_path)
    assert main([str(layout.run_dir), "--quiet"]) == 0
    assert (capsys.readouterr().out, layout.matrix_json.exists()) == ("", True)


def test_command_refuses_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the file, and exit code 2."""
    assert main([str(tmp_path)]) == 2
    assert str(tmp_path / "plan.json") in capsys.readouterr().err


@pytest.mark.e2e
def test_module_runs_by_itself(tmp_path: Path) -> None:
    """As ``python -m aorta.matrix``, in a terminal without UTF-8."""
    layout = example_run(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "aorta.matrix", str(layout.run_dir)],
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith(b"# EXAMPLE-001: training, INCOMPLETE")
