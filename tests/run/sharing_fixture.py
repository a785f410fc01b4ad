"""A workload that uses its devices exclusively and tells when it finds one in use. Trials import it from PYTHONPATH."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from typing import Any

STAY_VARIABLE = "SHARING_STAY"
"""Set in a trial that is to be killed: it starts a grandchild that goes on using the devices, and waits."""


class OnDevice:
    """Finds its devices as the runtimes do, and holds a lock of its own on each for as long as any process uses it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None:
        """Needs nothing."""

    def run(self) -> dict[str, Any]:
        """Uses the devices for a moment."""
        variable = {"rocm": "HIP_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}[self.config["kind"]]
        names = self.config["names"]
        chosen = [names[int(word)] if word.isdigit() else word for word in os.environ[variable].split(",")]
        raced = []
        descriptors = []
        for name in chosen:
            descriptors.append(os.open(os.path.join(self.config["folder"], name), os.O_RDWR | os.O_CREAT))
            try:
                fcntl.flock(descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raced.append(name)
        stays = STAY_VARIABLE in os.environ
        if stays:
            # It inherits the locks, so they say whether it lives.
            subprocess.Popen(["sleep", "60"], pass_fds=descriptors, start_new_session=True)
        entry = {"devices": chosen, "raced": raced, "stays": stays, "trial": self.config["_aorta_trial_index"]}
        with open(os.path.join(self.config["folder"], "log"), "a", encoding="ascii") as file:
            file.write(json.dumps({**entry, "sweep": self.config["sweep"]}) + "\n")
        time.sleep(60 if stays else 0.03)
        return {"passed": not raced, "total_iterations": 1, "metrics": {"devices": chosen}}

    def cleanup(self) -> None:
        """Leaves nothing."""
