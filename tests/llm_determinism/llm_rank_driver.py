"""One rank of several ``llm_determinism`` trials: takes a JSON list of (port, configuration), prints all results."""

from __future__ import annotations

import dataclasses
import json
import os
import sys


def main() -> None:
    """Runs the trials one after another, each with a process group of its own."""
    from aorta.workloads.llm_determinism import LlmDeterminismWorkload

    results = []
    for port, config in json.loads(sys.argv[1]):
        # With one port for all, a rank that is early would meet the others in the group that they are leaving.
        os.environ["MASTER_PORT"] = str(port)
        workload = LlmDeterminismWorkload(config)
        try:
            workload.setup()
            results.append(dataclasses.asdict(workload.run()))
        finally:
            workload.cleanup()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
