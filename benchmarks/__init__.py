"""Benchmarks of Launcher and of others: `python -m benchmarks --help`."""
