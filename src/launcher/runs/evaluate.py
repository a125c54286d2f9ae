"""Evaluate a checkpoint of each run on its validation set; job.checkpoint=1400 chooses the checkpoint."""

import argparse

from launcher.runs.rerun import add_arguments as add_arguments
from launcher.runs.rerun import rerun


def run(arguments: argparse.Namespace) -> int:
    return rerun(arguments, job="evaluate")
