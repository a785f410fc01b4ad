"""Runs one trial of a compiled plan and writes its record.

    python -I -S aorta/run/supervise.py --run-dir D --cell NAME --trial N --fingerprint F
                                        [--cell-dir C] [--order K --of TOTAL]
                                        [--attempt A] [--devices N] [--no-device-lock]
                                        [--launcher local|torchrun|slurm] [--join HOST:PORT]
                                        [--settle [--sweep NAME]]

Ends with 0 when the record was written, whatever the verdict; with 2 when the command or the cell's request is
wrong; with 1 when the record cannot be written, or another supervisor of the trial has gone; with 128 + n when signal
n ended it. There is no record then.

With --settle it runs nothing: it writes the record only if the trial's last attempt was ended by its SLURM job's end,
and no other attempt is due. With --sweep every end of a job of that name counts: the sweep has cancelled none itself.

With --join it is an agent: it starts its own ranks of a trial that the supervisor at HOST:PORT leads, and writes no
record. Then 0 means that its ranks have ended and were reported.

Only a door: a script is compiled at every start, so what it does lives in ``aorta.run.trial``.
"""

from __future__ import annotations

import os
import sys

if not __package__:
    # Under -I -S nothing but the standard library can be imported.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from aorta.run.trial import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], usage=__doc__))
