"""Compiles small HIP programs and runs each as a child process: the ground that ``hrx`` and ``hrx_perf`` stand on.

The programs' source lies in ``aorta/hrx/hip``. Standard library only.
"""
