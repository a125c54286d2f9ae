"""What Launcher costs, beside others: `python -m benchmarks --help`."""
