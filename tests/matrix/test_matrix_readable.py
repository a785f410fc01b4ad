"""What a reader could misread in the table: environments that look alike, sums over some trials, rounded times."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from matrix_builders import descriptor, plan, put, record, request, result, write_run

from aorta.matrix import aggregate, build_matrix, render_markdown
from aorta.matrix.__main__ import main


def rows(text: str, column: str) -> list[str]:
    """One column of a page's table."""
    table = [[cell.strip() for cell in line.split(" | ")] for line in text.splitlines() if line.startswith("|")]
    header = [title.strip("| ") for title in table[0]]
    return [row[header.index(column)].strip("| ") for row in table[2:]]


def page(requests: list[dict[str, Any]], records: list[dict[str, Any]], **fields: Any) -> str:
    cells = {one["cell"]: one for one in requests}
    snapshots = {one["environment"]["name"]: False for one in requests}
    return render_markdown(aggregate(plan(requests, **fields), cells, records, snapshots=snapshots))


def inline(digits: str, image: str, **fields: Any) -> dict[str, Any]:
    return descriptor(f"_inline_{digits}", docker=image, **fields)


def test_one_image_with_two_sets_of_variables_is_told_apart() -> None:
    """An image that is there once needs no hash."""
    places = [inline("0000aaaa", "acme/box:2"), inline("1111bbbb", "acme/box:2", env={"A": "1"}), inline("2c", "other")]
    cells = [request(f"c{index}", environment=place, acts_on=["docker"]) for index, place in enumerate(places)]
    assert rows(page(cells, []), "Environment") == ["acme/box:2 [0000aaaa]", "acme/box:2 [1111bbbb]", "other"]


def test_images_that_are_cut_to_the_same_text_are_told_apart() -> None:
    """A registry's long path comes first, the tag last."""
    places = [inline("0000aaaa", f"{'x' * 60}:1"), inline("1111bbbb", f"{'x' * 60}:2")]
    shown = rows(
        page([request(f"c{index}", environment=place) for index, place in enumerate(places)], []), "Environment"
    )
    assert [label.split("…")[1] for label in shown] == [" [0000aaaa] (ran on host)", " [1111bbbb] (ran on host)"]


def test_warnings_and_notes_name_the_image() -> None:
    """A hash alone is in no table; inside a path it has to stay what it is."""
    message = "environment '_inline_acb97e4a' names docker; environments/_inline_acb97e4a/env.json: is not JSON"
    cell = request("a", environment=inline("acb97e4a", "acme/box:2"))
    text = page([cell], [], warnings=({"cell": None, "code": "x", "message": message},))
    expected = "environment 'acme/box:2 (_inline_acb97e4a)' names docker; environments/_inline_acb97e4a/env.json: is"
    assert expected in text.replace("\\", "")
    assert "inside 1 environment: acme/box:2 (_inline_acb97e4a)." in text.replace("\\", "")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("pp", "8/8"),
        ("ppc", "8/8 (2 of 3 trials)"),
        ("psc", "4/4 (1 of 3 trials)"),
        ("ps", "4/4 (1 of 2 trials)"),
        ("c", "-"),
    ],
)
def test_iterations_say_how_many_trials_they_are_of(outcomes: str, expected: str) -> None:
    """A sum over some of the trials must not pass for one over all."""
    cell = request("a", trials=3)
    silent = result(executed_iterations=None, configured_iterations=None)
    makers = {
        "p": lambda trial: record(cell, trial),
        "s": lambda trial: record(cell, trial, result=silent),
        "c": lambda trial: record(cell, trial, "crash"),
    }
    records = [makers[letter](trial) for trial, letter in enumerate(outcomes)]
    assert rows(page([cell], records), "Iterations") == [expected]


@pytest.mark.parametrize(
    ("step_ms", "tag", "ratio"),
    [
        (115.0, "-", "1.15 (not above)"),
        (115.0001, "speed (+15%)", "1.150001 (above)"),
        (114.9999, "-", "1.149999 (below)"),
        (114.5, "-", "1.145 (below)"),
        (120.0, "speed (+20%)", None),
    ],
)
def test_a_ratio_that_rounding_hides_is_given(step_ms: float, tag: str, ratio: str | None) -> None:
    """Three cells with a mean step of 115 may lie on three sides of the threshold."""
    cells = [request("base"), request("near")]
    times = {"base": 100.0, "near": step_ms}
    records = [record(cell, 0, result=result(step_times_ms=[times[cell["cell"]]] * 4)) for cell in cells]
    text = page(cells, records)
    assert rows(text, "Confound") == ["(baseline)", tag]
    line = f"- Step time over the baseline's, close to the threshold of 1.15: near {ratio}.\n"
    assert line in text if ratio else "close to the threshold" not in text


def test_the_command_prints_no_control_character_of_a_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a trial, a setting or a warning holds, the terminal that shows it is not steered."""
    evil = "a\x1b]0;x\x07\x9b2J\u202eb\r"
    cell = request("a", mitigations=[evil], workload_config={evil: evil}, environment=descriptor(evil, docker=evil))
    detail = {"step": 1, "check": evil, "tensor": evil, "hint": evil, "phase": evil}
    crash = record(cell, 1, "crash")
    crash["error"] |= {"message": evil, "type": evil, "hint": evil}
    failed = record(cell, 0, "fail", result=result(passed=False, failure_details=[detail], metrics={evil: evil}))
    warning = {"cell": "a", "code": "x", "message": evil}
    the_plan = plan([cell], ticket=evil, warnings=(warning,))
    layout = write_run(tmp_path, plan([cell]), [failed, crash])
    put(layout.plan, the_plan.to_json())
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "## First failures" in printed and "## Errors" in printed and "\ufffd" in printed
    assert all(line.isprintable() for line in printed.split("\n"))


@pytest.mark.parametrize(
    "message", ["x" * 200_000, "x, " * 60_000, f"_inline_{'a' * 200_000}", "_inline_0000aaaa." * 9000]
)
def test_long_messages_take_no_time(message: str) -> None:
    """A warning may quote what a user wrote; looking for names in it must not take minutes."""
    warning = {"cell": None, "code": "x", "message": message}
    started = time.process_time()
    assert "…" in page([request("a")], [], warnings=(warning,))
    assert time.process_time() - started < 5


def test_an_incomplete_row_says_how_much_of_it_is_there(tmp_path: Path) -> None:
    """3 of 4 trials, and 0 of 4: a rate of what exists must not look like the rate of the cell."""
    cells = [request("whole"), request("part"), request("nothing")]
    records = [record(cells[0], trial) for trial in range(4)]
    records += [record(cells[1], trial, "fail" if trial else "pass") for trial in range(3)]
    layout = write_run(tmp_path, plan(cells), records)
    page = render_markdown(build_matrix(layout.run_dir))
    rows = {row.split("|")[1].strip(): row.split("|")[5].strip() for row in page.splitlines() if row.startswith("| ")}
    assert rows["whole"] == "0/4"
    assert rows["part"] == "2/3 (3 of 4 trials)"
    assert rows["nothing"] == "- (0 of 4 trials)"
