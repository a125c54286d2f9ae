"""Resume runs: repeat the command that started each."""

import argparse

from launcher.runs.rerun import add_arguments as add_arguments
from launcher.runs.rerun import rerun


def run(arguments: argparse.Namespace) -> int:
    return rerun(arguments)
