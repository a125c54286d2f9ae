"""What Launcher costs, compared with others: `python -m benchmarks --help`."""
