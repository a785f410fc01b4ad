"""aorta: a Snakemake-native engine for triaging intermittent GPU failures."""

__version__ = "0.1.0"

__all__ = ["__version__"]
