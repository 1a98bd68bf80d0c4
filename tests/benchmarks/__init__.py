"""Measure the engine beside its peers: ``python -m tests.benchmarks --help``."""
