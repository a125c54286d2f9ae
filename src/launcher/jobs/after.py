"""job.after, the commands that follow the training of a run once it is complete."""

import gc
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.errors import TrainingError
from launcher.process import signals
from launcher.process.identity import without_rank

POLL = 0.1
"""Seconds between two checks of the process."""

logger = logging.getLogger("launcher")


def run_after(verbs: Sequence[str], folder: Path, has_test_set: bool) -> None:
    """Run `launcher.runs evaluate` or `export` for a run, each in a process of its own.

    Called on rank 0.

    Args:
        verbs: commands to run, of evaluate and export.
        folder: the run's folder.
        has_test_set: also evaluate the test set.
    Raises:
        TrainingError: a command has failed. The run stays completed.
        signals.SignalExit: a signal came, which the running process received too.
    """
    _free_memory()
    for arguments in _commands(verbs, folder, has_test_set):
        command = [sys.executable, "-m", "launcher.runs", *arguments]
        logger.info("job.after: python -m launcher.runs %s", shlex.join(arguments))
        # The training has already run this code.
        process = subprocess.Popen([*command, "--trust"], env=without_rank(os.environ))
        code = _ended(process)
        if code != 0:
            raise TrainingError(
                f"job.after: the run is completed, but a command has ended with exit code {code}."
                f" To repeat it: python -m launcher.runs {shlex.join(arguments)}"
            )


def _commands(verbs: Sequence[str], folder: Path, has_test_set: bool) -> Iterator[list[str]]:
    for verb in dict.fromkeys(verbs):
        yield [verb, str(folder)]
        if verb == "evaluate" and has_test_set:
            yield [verb, str(folder), "--split", "test"]


def _ended(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return process.wait(POLL)
        except subprocess.TimeoutExpired:
            if signum := signals.received():
                process.send_signal(signum)
                process.wait()
                raise signals.SignalExit(signum) from None


def _free_memory() -> None:
    """Free the memory of the trainer, which the next process needs."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
