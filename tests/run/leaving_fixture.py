"""A workload module that leaves the process while it is imported."""

import sys

sys.exit(0)
