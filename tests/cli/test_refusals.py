"""Command lines that make no sense are refused with exit code 2; old names say what is new and do the same."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Aorta

RECIPE = "recipes/smoke/gpu-smoke.yaml"
PROBE = "recipes/probe/example-probe-smoke.yaml"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--workload", "training"], "--workload"),
        (["--trials", "2", "--steps", "3"], "--trials, --steps"),
        (["--mitigation-axis", "none"], "--mitigation-axis"),
        (["--environment-axis", "local", "--ticket", "T"], "--environment-axis, --ticket"),
        (["--baseline-cell", "a", "--confound-threshold", "2"], "--baseline-cell, --confound-threshold"),
        (["--trial-isolation", "auto", "--save-logs"], "--trial-isolation, --save-logs"),
        (["--extra-env", "A=1", "--workload-config", "a=1"], "--extra-env, --workload-config"),
    ],
)
def test_flags_that_contradict_a_recipe_are_named(aorta: Aorta, flags: list[str], named: str) -> None:
    """Even a flag that repeats a default: the recipe says what runs."""
    ended = aorta("sweep", "run", "--recipe", RECIPE, "--dry-run", *flags)
    assert ended.exit_code == 2
    assert f"Error: {named}: not with --recipe" in ended.stderr


def test_mode_matrix_does_not_contradict_a_recipe(aorta: Aorta) -> None:
    """A recipe describes just such a run."""
    assert aorta("sweep", "run", "--mode", "matrix", "--recipe", RECIPE, "--dry-run").exit_code == 0


@pytest.mark.parametrize(
    ("command", "option", "value", "told"),
    [
        ("run", "--nodes", "0", "a whole number from 1 to 65536, not 0"),
        ("run", "--nodes", "abc", "a whole number from 1 to 65536, not 'abc'"),
        ("run", "--nproc-per-node", "1.5", "a whole number from 1 to 1024, not '1.5'"),
        ("run", "--devices", "-3", "a whole number from 1 to 4096, not -3"),
        ("submit", "--shards", "0", "a whole number from 1 to 100000, not 0"),
        ("submit", "--cpus", "many", "a whole number, 1 or more, not 'many'"),
    ],
)
def test_a_wrong_number_is_told_as_in_settings(aorta: Aorta, command: str, option: str, value: str, told: str) -> None:
    """With its bounds."""
    ended = aorta("sweep", command, "--recipe", RECIPE, "--dry-run", option, value)
    assert ended.exit_code == 2
    assert ended.stderr.endswith(f"Invalid value for '{option}': must be {told}\n")


def test_neither_recipe_nor_flags(aorta: Aorta) -> None:
    """Both ways are offered."""
    ended = aorta("sweep", "run")
    assert ended.exit_code == 2
    assert "--recipe FILE, or --mode matrix with --workload" in ended.stderr


def test_every_bad_flag_is_named_at_once(aorta: Aorta) -> None:
    """The same checks as a recipe's, with the flag as the place."""
    words = ["sweep", "run", "--mode", "matrix", "--mitigation-axis", "none,tf32_of", "--environment-axis", "locl"]
    words += ["--trials", "0", "--extra-env", "9A=1", "--workload-config", "a=.inf", "--baseline-cell", "x"]
    ended = aorta(*words, "--dry-run")
    assert ended.exit_code == 2
    places = {line.split(": ")[0] for line in ended.stderr.splitlines()}
    assert places == {
        *("--workload", "--trials", "--steps", "--mitigation-axis", "--environment-axis"),
        *("--extra-env", "--workload-config", "--baseline-cell"),
    }
    assert "did you mean 'tf32_off'?" in ended.stderr


def test_an_unknown_collector(aorta: Aorta) -> None:
    """The known ones are offered."""
    ended = aorta("sweep", "run", "--recipe", RECIPE, "--dry-run", "--collect", "layer_numeric")
    assert ended.exit_code == 2
    assert ended.stderr.startswith("collect: 'layer_numeric' is not a known collector; did you mean 'layer_numerics'?")


@pytest.mark.parametrize("words", [("sweep", "run"), ("probe",), ("triage", "run")])
def test_a_trailing_command_is_refused(aorta: Aorta, words: tuple[str, ...]) -> None:
    """A matrix recipe has no use for one, and says so."""
    ended = aorta(*words, "--recipe", RECIPE, "--dry-run", "--", "echo", "hi")
    assert ended.exit_code == 2
    assert "'echo hi': a command belongs to recipes that wrap one" in ended.stderr


@pytest.mark.parametrize(
    "words", [("sweep", "run"), ("probe",), ("triage", "run"), ("sweep", "submit", "--shards", "2")]
)
@pytest.mark.parametrize("command", ["bash h.sh --fresh", "bash h.sh --steps 100", "echo hi", "bash h.sh -- --fresh"])
def test_a_command_without_dashes_is_refused(aorta: Aorta, words: tuple[str, ...], command: str) -> None:
    """Its options would be taken for aorta's; the right form is shown."""
    ended = aorta(*words, "--recipe", PROBE, "--dry-run", *command.split())
    assert ended.exit_code == 2
    first = command.split()[0]
    assert f"Error: '{first}' belongs to no option; a command to run goes after --, as in: " in ended.stderr
    assert f"{' '.join(words)} --recipe {PROBE} --dry-run -- {command}\n" in ended.stderr


@pytest.mark.parametrize("words", [("sweep", "run"), ("probe",), ("triage", "run")])
def test_a_command_after_dashes_keeps_its_words(aorta: Aorta, words: tuple[str, ...]) -> None:
    """Those that have a name of aorta's too, and a second pair of dashes."""
    ended = aorta(*words, "--recipe", PROBE, "--dry-run", "--", "bash", "h.sh", "--fresh", "--", "--json")
    assert ended.exit_code == 0, ended.stderr
    assert "bash h.sh --fresh -- --json" in ended.stdout


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        (("--trial-timeout", "5"), "trial_timeout: not for a recipe that wraps a command"),
        (("--nproc-per-node", "2"), "nproc_per_node: not for a recipe that wraps a command"),
        (("--rank-logs",), "rank_logs: not for a recipe that wraps a command"),
    ],
)
def test_what_only_suits_a_workload_is_refused_for_a_command(aorta: Aorta, flag: tuple[str, ...], remedy: str) -> None:
    """Nothing that a user gave is silently ignored."""
    ended = aorta("sweep", "run", "--recipe", PROBE, *flag, "--dry-run", "--", "echo", "hi")
    assert ended.exit_code == 2
    assert remedy in ended.stderr


@pytest.mark.parametrize("recipe", ["probe-template-bash", "probe-template-torchrun", "probe-template-buck2"])
def test_the_guide_s_dry_run_of_a_handout(aorta: Aorta, recipe: str) -> None:
    """Four cells, the command, and nothing written."""
    ended = aorta("sweep", "run", "--recipe", f"recipes/probe/{recipe}.yaml", "--dry-run", "--", "echo", "hi")
    assert ended.exit_code == 0, ended.stderr
    assert "command   echo hi\n" in ended.stdout
    assert "12 in 4 cells" in ended.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("triage", "run", "--recipe", RECIPE, "--dry-run"), ("sweep", "run", "--recipe", RECIPE, "--dry-run")),
        (("probe", "--recipe", RECIPE, "--dry-run"), ("sweep", "run", "--recipe", RECIPE, "--dry-run")),
        (("triage", "run", "--recipe", "none.yaml"), ("sweep", "run", "--recipe", "none.yaml")),
        (("triage", "list-mitigations"), ("sweep", "list-mitigations")),
        (("triage", "list-environments", "--json"), ("sweep", "list-environments", "--json")),
    ],
)
def test_old_names_do_the_same_after_one_line(aorta: Aorta, old: tuple[str, ...], new: tuple[str, ...]) -> None:
    """Same output, same exit code; the notice goes to standard error."""
    before, after = aorta(*old), aorta(*new)
    notice, _, rest = before.stderr.partition("\n")
    words = [" ".join(["aorta", *old[: 1 + (old[0] == "triage")]]), " ".join(["aorta", *new[:2]])]
    assert notice == f"aorta: notice: {words[0]!r} is deprecated; use {words[1]!r}"
    assert (before.exit_code, rest) == (after.exit_code, after.stderr)
    # A dry-run names a run directory by the second.
    assert [line for line in before.stdout.splitlines() if not line.startswith("run ")] == [
        line for line in after.stdout.splitlines() if not line.startswith("run ")
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("mitigations", "list", "--file"),
        ("environments", "list", "--file"),
        ("sweep", "list-mitigations", "--mitigations-file"),
        ("sweep", "run", "--recipe", RECIPE, "--dry-run", "--mitigations-file"),
        ("sweep", "status"),
        ("sweep", "report"),
        ("sweep", "diff", "x"),
        ("bundle",),
        ("bundle", "x", "--output"),
    ],
)
def test_an_empty_path_is_refused(aorta: Aorta, words: tuple[str, ...]) -> None:
    """As of an unset shell variable; it would be taken for the folder that we are in."""
    ended = aorta(*words, "")
    assert ended.exit_code == 2
    assert "is empty; name a path" in ended.stderr


def test_one_cell_is_said_as_one(aorta: Aorta) -> None:
    """Numbers and nouns agree."""
    words = ("sweep", "run", "--mode", "matrix", "--workload", "gpu_smoke", "--trials", "1", "--steps", "1")
    assert "1 in 1 cell\n" in aorta(*words, "--dry-run").stdout
