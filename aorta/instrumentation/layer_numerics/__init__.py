"""Logs NaN, infinite and huge values of every layer of a PyTorch program, which is not edited for it.

    python -m aorta.instrumentation.layer_numerics [--config FILE] SCRIPT [args]

What is measured, and where it goes, is in ``docs/layer-numerics.md``. Nothing is imported here.
"""
