"""What a recipe's trials ask a cluster for: reading the values that may be written in several ways."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal

RESOURCE_NAMES = ("gpus", "nodes", "partition", "runtime", "mem", "constraint", "account", "extra")

_MINUTES = {"m": 1, "h": 60, "d": 1440}
_MEGABYTES = {"M": 1, "G": 1000, "T": 1_000_000}

PRINTING = ("--help", "--usage", "--version", "-h", "-u", "-V")
"""Options with which sbatch prints something and submits nothing."""

# What each option of sbatch goes by in a recipe; None where the engine, or a setting, decides it.
_MANAGED: dict[str, str | None] = {
    "--account": "account",
    "-A": "account",
    "--partition": "partition",
    "-p": "partition",
    "--mem": "mem",
    "--mem-per-cpu": None,
    "--time": "runtime",
    "-t": "runtime",
    "--constraint": "constraint",
    "-C": "constraint",
    "--nodes": "nodes",
    "-N": "nodes",
    "--gres": "gpus",
    "--gpus": "gpus",
    "--gpus-per-node": "gpus",
    "--gpus-per-task": "gpus",
    "--ntasks": None,
    "-n": None,
    "--ntasks-per-node": None,
    "--ntasks-per-gpu": None,
    "--cpus-per-task": None,
    "-c": None,
    "--cpus-per-gpu": None,
    "--job-name": None,
    "-J": None,
    "--output": None,
    "-o": None,
    "--error": None,
    "-e": None,
    "--comment": None,
    "--export": None,
    "--chdir": None,
    "-D": None,
    "--workdir": None,
    "--parsable": None,
    "--clusters": None,
    "-M": None,
    "--qos": None,
    "-q": None,
    "--array": None,
    "-a": None,
    "--wrap": None,
    # These change what becomes of a job, which the engine follows.
    "--test-only": None,
    "--hold": None,
    "-H": None,
    "--requeue": None,
    "--no-requeue": None,
    "--wait": None,
    "-W": None,
    "--quiet": None,
    "-Q": None,
    "--het-group": None,
    **dict.fromkeys(PRINTING),
}


def extra_faults(extra: str) -> Iterator[str]:
    """Says which options of ``extra`` are not its to give, each with what is.

    Args:
        extra: The value of ``resources.extra``: options of ``sbatch``, separated by blanks.
    """
    for word in extra.split():
        option = _managed(word)
        if option is not None:
            name = _MANAGED[option]
            remedy = f"use resources.{name}" if name else "the engine or the profile sets it (docs/clusters.md)"
            if option in PRINTING:
                remedy = "sbatch would print something and submit nothing"
            yield f"must not hold {word.partition('=')[0]!r}: {remedy}"
        elif word == ":":
            yield "must not hold ':': a trial is one job, not a heterogeneous one"


def _managed(word: str) -> str | None:
    """Returns the managed option that sbatch would read a word as: whole, ``-t5``, or ``--tim`` for ``--time``."""
    if word.startswith("--"):
        given = word.partition("=")[0]
        if given in _MANAGED:
            return given
        return next((option for option in _MANAGED if len(given) > 2 and option.startswith(given)), None)
    return word[:2] if word[:2] in _MANAGED else None


def plain_resources(*layers: Mapping[str, int | str]) -> dict[str, int | str]:
    """Returns the resources of a cell in their plain form: ``runtime`` in minutes and ``mem`` in MB, as numbers.

    Args:
        layers: The recipe's resources and the cell's, valid; later ones win key by key.
    """
    merged: dict[str, int | str] = {}
    for layer in layers:
        merged.update(layer)
    if "runtime" in merged:
        merged["runtime"] = _number(merged["runtime"], _MINUTES)
    if "mem" in merged:
        merged["mem"] = _number(merged["mem"], _MEGABYTES)
    if "extra" in merged:
        # A folded block of YAML ends with a line break, which would end sbatch's command line as well.
        merged["extra"] = " ".join(str(merged["extra"]).split())
    return {name: merged[name] for name in RESOURCE_NAMES if name in merged}


def _number(value: int | str, units: Mapping[str, int]) -> int:
    if isinstance(value, int):
        return value
    found = re.fullmatch(r"([0-9.]+) *([A-Za-z])[A-Za-z]*", value)
    assert found is not None, "the schema lets nothing else through"
    return max(1, round(Decimal(found[1]) * units[found[2]]))
