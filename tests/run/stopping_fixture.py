"""A workload that ends as its configuration says, attempt by attempt. Trials import this file from PYTHONPATH."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any


class Scripted:
    """Ends as the next word of ``config["ends"]``: pass, fail, raise, absent, or kill (of its supervisor).

    The file ``config["tally"]`` has one line an attempt, so that attempts are counted without the engine's help.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None:
        pass

    def cleanup(self) -> None:
        pass

    def run(self) -> dict[str, Any]:
        tally = Path(self.config["tally"])
        before = len(tally.read_text().splitlines()) if tally.exists() else 0
        with tally.open("a") as file:
            file.write("attempt\n")
        end = self.config["ends"][before]
        if end == "raise":
            raise ValueError(f"attempt {before + 1} went wrong")
        if end == "kill":
            os.kill(int(self.config["_aorta_trial_env"].get("NOBODY", os.getppid())), signal.SIGKILL)
            signal.pause()
        return {"passed": end != "fail", "main_work_started": end != "absent", "total_iterations": 1}
