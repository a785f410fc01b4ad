"""The trial's supervisor on a host whose ``/`` is the folder that the first word names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from aorta.run import device
from aorta.run.trial import main

if __name__ == "__main__":
    assert device.hold.__kwdefaults__ is not None
    device.hold.__kwdefaults__["root"] = sys.argv[1]
    sys.exit(main(sys.argv[2:]))
