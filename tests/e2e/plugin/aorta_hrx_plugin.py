"""``hrx`` on a machine without an AMD GPU: the driver's device file is one that every machine has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aorta.workloads.hrx import HrxWorkload


class HrxOnStandin(HrxWorkload):
    """The real workload; the compiler is the recipe's to name."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config, kfd=Path("/dev/null"))
