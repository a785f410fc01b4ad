"""The page that a person reads, as plain text without any markup: title, verdict, one table, and what needs saying.

Each renderer puts the same page into its own format.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aorta._jsonio import canonical_json
from aorta.matrix import confound
from aorta.matrix.aggregate import Matrix
from aorta.matrix.environments import environment_labels, with_images
from aorta.matrix.injected import LONGEST_NAME, cell_title, planted_faults
from aorta.matrix.notes import notes
from aorta.matrix.text import (
    capped,
    cells_named,
    decimals_for,
    fixed,
    joined,
    one_line,
    percent,
    ranges,
    with_short_lists,
)
from aorta.text import plural

_LONGEST_LINE = 320
_LONGEST_VALUE = 32
_LONGEST_CONFIG = 96


EVENT_RATE = "Event rate (95%)"
"""Title of the column that matrices with a rule to stop have beside the failure rate."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is to be shown, in this order.

    Attributes:
        title: Ticket, workload and state.
        complete: Whether every trial has a valid record.
        verdict: One sentence: which cells fail, and how often.
        header: Titles of the table's columns.
        right: Titles of those that are aligned to the right.
        rows: The table, one row a cell.
        states: Each row's outcome for colouring: ``fail``, ``error``, ``pass`` or ``none`` (no trial yet).
        sections: Title and lines of each further part; only parts that have something to say, long ones cut.
    """

    title: str
    complete: bool
    verdict: str
    header: tuple[str, ...]
    right: frozenset[str]
    rows: tuple[tuple[str, ...], ...]
    states: tuple[str, ...]
    sections: tuple[tuple[str, tuple[str, ...]], ...]


def build_page(matrix: Matrix) -> Page:
    """Returns the page of a matrix."""
    header, rows = _table(matrix)
    sections = {
        "Command": _command(matrix),
        "Warnings": capped(_warnings(matrix)),
        "First failures": capped(_first_failures(matrix["cells"])),
        "Failure hints": capped(_hints(matrix["cells"])),
        "Errors": capped(_errors(matrix["cells"])),
        "Missing trials": capped(_missing(matrix["cells"])),
        "Notes": notes(matrix),
    }
    return Page(
        title=_title(matrix),
        complete=matrix["complete"],
        verdict=one_line(_verdict(matrix["cells"])),
        header=header,
        right=frozenset({"Failure rate", "Failures", "Errors", EVENT_RATE, "Iterations", "Mean step (ms)"}),
        rows=rows,
        states=tuple(_state(cell["verdict_counts"]) for cell in matrix["cells"]),
        sections=tuple(
            (title, tuple(one_line(line, _LONGEST_LINE) for line in lines))
            for title, lines in sections.items()
            if lines
        ),
    )


def _command(matrix: Matrix) -> list[str]:
    command = matrix.get("command")
    return [f"{shlex.join(command['argv'])} (in {command['cwd']})"] if command else []


def _title(matrix: Matrix) -> str:
    missing = matrix["trials_expected"] - matrix["trials_present"]
    trials = plural(matrix["trials_expected"], "trial")
    state = "complete" if matrix["complete"] else f"INCOMPLETE: {missing} of {trials} missing"
    name = matrix["workload"] if matrix["ticket"] is None else f"{matrix['ticket']}: {matrix['workload']}"
    return f"{one_line(name, 120)}, {state}"


def _verdict(cells: Sequence[Mapping[str, Any]]) -> str:
    planted = sum(planted_faults(cell["workload_config"]) is not None for cell in cells)
    note = f" Faults were planted on purpose in {planted} of {plural(len(cells), 'cell')}." if planted else ""
    return _outcome(cells) + note


def _outcome(cells: Sequence[Mapping[str, Any]]) -> str:
    present = [cell for cell in cells if cell["trials_present"]]
    if not present:
        return "No trial has finished yet."
    failing = [cell for cell in present if cell["verdict_counts"]["fail"]]
    troubled = [cell for cell in present if cell["verdict_counts"]["error"]]
    errors = joined([f"{cell['name']} {cell['verdict_counts']['error']}/{cell['trials_counted']}" for cell in troubled])
    if failing:
        failing.sort(key=lambda cell: -cell["event_rate"])
        which = joined(
            [f"{cell['name']} {cell['verdict_counts']['fail']}/{cell['trials_counted']}" for cell in failing]
        )
        verb = "fails" if len(failing) == 1 else "fail"
        rest = f"; errors: {errors}" if troubled else ""
        return f"{len(failing)} of {plural(len(cells), 'cell')} {verb}: {which}{rest}."
    if troubled:
        if any(cell["verdict_counts"]["pass"] for cell in present):
            return f"No cell fails, but some trials end in an error: {errors}."
        return f"No trial gave a verdict; all end in an error: {errors}."
    number = sum(cell["trials_counted"] for cell in present)
    trials = "The only trial passes" if number == 1 else f"All {number} trials pass"
    spared = sum(cell["trials_not_needed"] + len(cell["excess_trials"]) for cell in present)
    expected = sum(cell["trials"] for cell in cells) - spared
    return f"{trials}{'' if number == expected else f' of the {expected} planned'}."


def _state(verdicts: Mapping[str, int]) -> str:
    """The worst verdict of a cell: fail before error before pass."""
    return next((verdict for verdict in ("fail", "error", "pass") if verdicts[verdict]), "none")


def _table(matrix: Matrix) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    cells, labels = matrix["cells"], environment_labels(matrix["environments"])
    decimals = decimals_for(cell["mean_step_time_ms"] for cell in cells)
    configs = varying_config(cells)
    stops = any(cell["stop_after"] is not None for cell in cells)
    header = (
        *("Cell", "Mitigations", "Environment", "Failure rate", "Failures", "Errors"),
        *((EVENT_RATE, "Stop") if stops else ()),
        *("Iterations", "Mean step (ms)", "Confound"),
    )
    rows = [
        (
            cell_title(cell),
            "?" if cell["mitigations"] is None else one_line(", ".join(cell["mitigations"]), 2 * LONGEST_NAME),
            _environment(cell, labels),
            percent(cell["failure_rate"]),
            _failures(cell),
            str(cell["verdict_counts"]["error"]),
            *((_event_rate(cell), _stop(cell)) if stops else ()),
            _iterations(cell["iterations"], cell["trials_counted"]),
            fixed(cell["mean_step_time_ms"], decimals),
            cell["confound"]["tag"],
        )
        for cell in cells
    ]
    if not any(configs):
        return header, tuple(rows)
    return (*header, "Config"), tuple((*row, _config(config)) for row, config in zip(rows, configs, strict=True))


def _failures(cell: Mapping[str, Any]) -> str:
    """Failures over the trials that count, and how many of the cell's trials are there where some are missing."""
    share = f"{cell['verdict_counts']['fail']}/{cell['trials_counted']}" if cell["trials_counted"] else "-"
    if not cell["missing_trials"]:
        return share
    return f"{share} ({cell['trials_present']} of {plural(cell['trials'], 'trial')})"


def _event_rate(cell: Mapping[str, Any]) -> str:
    if cell["event_rate"] is None:
        return "-"
    low, high = cell["event_rate_ci95"]
    return f"{percent(cell['event_rate'])} ({percent(low)} to {percent(high)})"


def _stop(cell: Mapping[str, Any]) -> str:
    """Says why the cell's sampling ended, and after how many of its trials."""
    if cell["stop_after"] is None:
        return "-"
    number, most = cell["trials_counted"], cell["trials"]
    words = {"events_reached": "stopped early" if number < most else "events reached", "cap_reached": "cap reached"}
    return f"{words.get(cell['stop_reason'], 'open')}, {number}/{most}"


def _environment(cell: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Names the environment, and says so where the workload took no notice of it."""
    descriptor, ignored = cell["resolved_environment"] or {}, cell["environment_fields_ignored"] or []
    name = labels.get(cell["environment"]) or one_line(cell["environment"], LONGEST_NAME)
    if not ignored:
        return name
    honoured = [
        field
        for field in ("docker", "venv", "buck_target", "emulator")
        if descriptor.get(field) is not None and field not in ignored
    ]
    return f"{name} ({', '.join(ignored)} ignored)" if honoured else f"{name} (ran on host)"


def _iterations(iterations: Mapping[str, int | None], counted: int) -> str:
    """Says so where some of the cell's trials report none, as one that crashed."""
    executed, configured, trials = iterations["executed"], iterations["configured"], iterations["trials"]
    if executed is None:
        return "-"
    told = str(executed) if configured is None else f"{executed}/{configured}"
    return told if trials == counted else f"{told} ({trials} of {plural(counted, 'trial')})"


def varying_config(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Returns, cell by cell, the ``workload_config`` entries whose value is not the same in every cell.

    Returns:
        Dotted key to the value as text; a key that a cell does not set is absent there.
    """
    flat = [dict(_flatten(cell["workload_config"])) for cell in cells]
    keys = sorted({key for config in flat for key in config})
    varying = [key for key in keys if len({config.get(key) for config in flat}) > 1]
    return [{key: config[key] for key in varying if key in config} for config in flat]


def _flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Returns dotted keys and canonical JSON values; JSON tells 1 from true and from "1"."""
    pairs = []
    for key, entry in value.items():
        if isinstance(entry, dict) and entry:
            pairs += _flatten(entry, f"{prefix}{key}.")
        else:
            pairs.append((f"{prefix}{key}", canonical_json(entry)))
    return pairs


def _config(config: Mapping[str, str]) -> str:
    if not config:
        return "-"
    settings = []
    for key, value in config.items():
        # A plain word needs no quotes to be understood.
        plain = value[1:-1] if value.startswith('"') and value[1:-1].isidentifier() else value
        settings.append(f"{key}={one_line(plain, _LONGEST_VALUE)}")
    return one_line(", ".join(settings), _LONGEST_CONFIG)


def _warnings(matrix: Matrix) -> list[str]:
    """One line for each distinct message, with the cells that it is about."""
    all_names = [cell["name"] for cell in matrix["cells"]]
    cells: dict[str, list[str]] = defaultdict(list)
    for warning in matrix["warnings"]:
        of_message = cells[warning["message"]]
        if warning["cell"] is not None and warning["cell"] not in of_message:
            of_message.append(warning["cell"])
    lines = []
    for message, names in cells.items():
        text = with_images(with_short_lists(message, frozenset(all_names)), matrix["environments"])
        lines.append(f"{cells_named(names, len(all_names))}: {text}" if names else text)
    return lines


def _first_failures(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a cell: where its failing trials failed first."""
    lines = []
    for cell in cells:
        places = [f"{_place(entry)} ({_which(entry['trials'])})" for entry in cell["first_failures"]]
        if places:
            lines.append(f"{cell['name']}: {'; '.join(capped(places, 3))}")
    return lines


def _place(entry: Mapping[str, Any]) -> str:
    step = f"{'warm-up ' if entry['phase'] == 'warmup' else ''}step {entry['step']}"
    parts = (
        None if entry["step"] is None else step,
        None if entry["rank"] is None else f"rank {entry['rank']}",
        None if entry["tensor"] is None else one_line(entry["tensor"], LONGEST_NAME),
        None if entry["check"] is None else one_line(entry["check"], LONGEST_NAME),
    )
    return ", ".join(part for part in parts if part is not None)


def _which(trials: Sequence[int]) -> str:
    return f"{'trial' if len(trials) == 1 else 'trials'} {ranges(trials)}"


def _hints(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a hint, in the order in which they first occur."""
    where: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for cell in cells:
        for entry in cell["failure_hints"]:
            where[entry["hint"]].append((cell["name"], entry["count"]))
    return [
        f"{plural(sum(number for _, number in counts), 'trial')} ({_by_cell(counts)}): {one_line(hint, 160)}"
        for hint, counts in where.items()
    ]


def _by_cell(counts: Sequence[tuple[str, int]]) -> str:
    return counts[0][0] if len(counts) == 1 else joined([f"{name} {number}" for name, number in counts], 4)


def _errors(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line an error, with what may help."""
    where: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
    for cell in cells:
        for entry in cell["error_summary"]:
            # Its exit status may be ok, which is no name for an error.
            ending = confound.DID_NOT_RUN if entry["did_not_run"] else entry["exit_status"]
            where[ending, entry["message"]].append((cell["name"], entry))
    ordered = sorted(where.items(), key=lambda item: (-sum(entry["count"] for _, entry in item[1]), item[0]))
    lines = []
    for (ending, message), places in ordered:
        number = plural(sum(entry["count"] for _, entry in places), "trial")
        which = joined([f"{name} {ranges(entry['trials'])}" for name, entry in places], 4)
        hint = next((entry["hint"] for _, entry in places if entry["hint"]), None)
        advice = "" if hint is None else f" (hint: {one_line(hint, 120)})"
        lines.append(f"{ending}, {number} ({which}): {one_line(message, 140)}{advice}")
    return lines


def _missing(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{cell['name']}: {len(cell['missing_trials'])} of {cell['trials']} (trial {ranges(cell['missing_trials'])})"
        for cell in cells
        if cell["missing_trials"]
    ]
