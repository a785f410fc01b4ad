"""``hrx`` through the engine: a preload reaches the program, or the trial does not count."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aorta.recipe import load_recipe, resolved_recipe
from tests.e2e.conftest import REPOSITORY, Workspace

pytestmark = pytest.mark.e2e

_HIPCC = REPOSITORY / "tests" / "hrx" / "standin" / "hipcc"
_HRX = """\
#include <cstdlib>
// A runtime that is broken in a known way, so that the outcome tells whether it was in use.
__attribute__((constructor)) static void loaded() { setenv("HIP_STANDIN_FAULT", "not_launched", 1); }
"""


def smoke(**fields: Any) -> dict[str, Any]:
    """The shipped smoke recipe with other fields."""
    recipe = resolved_recipe(load_recipe(REPOSITORY / "recipes" / "hrx" / "hrx-launch-probe-smoke.yaml"))
    return {**recipe, **fields}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_off_and_on_are_told_apart_and_what_was_not_loaded_does_not_count(workspace: Workspace) -> None:
    """Four cells: the stock runtime, a preloaded one that is broken, one that is missing, one that is no library."""
    library = workspace.folder / "hrx.so"
    source = workspace.folder / "hrx.cpp"
    source.write_text(_HRX, "utf-8")
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    recipe = smoke(workload="hrx_on_standin")
    recipe["workload_config"]["hipcc"] = str(_HIPCC)
    _off, on = recipe["cells"]
    for name, path in [("missing", workspace.folder / "absent.so"), ("ignored", source)]:
        recipe["cells"].append({**on, "name": name, "extra_env": {**on["extra_env"], "LD_PRELOAD": str(path)}})
    on["extra_env"]["LD_PRELOAD"] = str(library)
    path = workspace.recipe(recipe.pop("cells"), **recipe)
    ended = workspace.aorta("sweep", "run", "--recipe", path)
    assert ended.code == 0, ended.stderr
    records = {record["cell"]: record for record in workspace.trials()}
    assert {name: record["exit_status"] for name, record in records.items()} == {
        "hrx_off": "ok",
        "hrx_on": "workload_failed",
        "missing": "workload_setup_failed",
        "ignored": "infrastructure_failed",
    }
    assert records["hrx_on"]["result"]["metrics"]["outcomes"] == {"OUTPUT_NOT_WRITTEN": 3}
    assert f"LD_PRELOAD names '{workspace.folder}/absent.so'" in records["missing"]["error"]["message"]
    assert f"the loader ignored '{source}'" in records["ignored"]["error"]["message"]


@pytest.mark.skipif(shutil.which("hipcc") is not None or Path("/opt/rocm/bin/hipcc").exists(), reason="has hipcc")
def test_without_a_compiler_the_matrix_says_so(workspace: Workspace) -> None:
    """The shipped recipe on a machine without ROCm: errors, not failures, that name what to install."""
    recipe = smoke()
    recipe["cells"] = recipe["cells"][:1]
    path = workspace.recipe(recipe.pop("cells"), **recipe)
    ended = workspace.aorta("sweep", "run", "--recipe", path, HIPCC="")
    assert ended.code == 0, ended.stderr
    (record,) = workspace.trials()
    assert (record["exit_status"], record["verdict"]) == ("workload_setup_failed", "error")
    assert record["error"]["message"].startswith("no hipcc: ")
    assert "install ROCm's HIP compiler" in (workspace.only_run() / "matrix.md").read_text("utf-8")
