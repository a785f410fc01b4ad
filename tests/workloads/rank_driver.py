"""One rank of a ``training`` run: takes a JSON request as its argument and prints the result as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import sys


def main() -> None:
    """Runs the workload; on the rank to poison, one weight of the final norm is NaN from the start."""
    from aorta.workloads.training import TrainingWorkload

    request = json.loads(sys.argv[1])
    workload = TrainingWorkload(request["config"])
    try:
        workload.setup()
        if request["poison_rank"] == int(os.environ.get("RANK", "0")):
            assert workload._session is not None
            for name, parameter in workload._session.model.named_parameters():
                if name.endswith("blocks.0.ffn_norm.weight"):
                    parameter.data.view(-1)[0] = float("nan")
        result = workload.run()
    finally:
        workload.cleanup()
    print(json.dumps(dataclasses.asdict(result)))


if __name__ == "__main__":
    main()
