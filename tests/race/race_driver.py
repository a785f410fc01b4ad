"""One rank of many race trials: takes a JSON list of configurations and prints the list of results as JSON.

The ranks meet once and then run trial after trial, as starting a process costs a hundred times a tiny trial.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys


def main() -> None:
    """Runs the trials in order; each is the workload's own, but for joining and leaving the process group."""
    import torch

    from aorta.race.config import ReproducerConfig
    from aorta.race.session import RaceSession
    from aorta.workloads.config import load_config
    from aorta.workloads.process_group import RankInfo, join_process_group, leave_process_group

    torch.set_num_threads(1)
    info = RankInfo.from_environment(os.environ)
    device = torch.device("cpu")
    join_process_group(info, device)
    results = []
    for config in json.load(sys.stdin):
        settings = load_config(ReproducerConfig, config, "race")
        session = RaceSession(settings, info, device, os.environ, trial=config.get("_aorta_trial_index", 0))
        results.append(dataclasses.asdict(session.run()))
    leave_process_group()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
