"""job.after, the commands that follow the training of a run once it is complete.

What has been done is noted in the run's `after.json`. A repeated command does what is missing.
"""

import fcntl
import gc
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.errors import TrainingError
from launcher.process import signals
from launcher.process.identity import without_rank
from launcher.rundir.files import parse_json, replace_file
from launcher.rundir.folder import step_name
from launcher.rundir.record_format import read_record

POLL = 0.1
"""Seconds between two checks of the process."""
DONE, LOCK = "after.json", ".after.lock"

logger = logging.getLogger("launcher")


def missing(verbs: Sequence[str], folder: Path, has_test_set: bool) -> list[list[str]]:
    """Return the commands that have not been done since the run was completed.

    Args:
        verbs: commands to run, of evaluate and export.
        folder: the run's folder.
        has_test_set: also evaluate the test set.
    Returns:
        Arguments of `launcher.runs` without the run; none for a run that is not completed.
    """
    if not verbs:
        return []
    try:
        record = read_record(folder / "run.json")
    # A record that is damaged is reported elsewhere.
    except (OSError, ValueError):
        return []
    if record.get("state") != "completed":
        return []
    step = int(record["step"])
    done = _noted(folder, step)
    return [
        command
        for command in _commands(verbs, has_test_set)
        if command not in done and not _is_evaluated(command, folder, step)
    ]


def run_after(verbs: Sequence[str], folder: Path, has_test_set: bool) -> None:
    """Run the missing commands for a run, each in a process of its own.

    Called on rank 0.

    Args:
        verbs: see `missing`.
        folder: the run's folder.
        has_test_set: see `missing`.
    Raises:
        TrainingError: a command has failed. The run stays completed.
        signals.SignalExit: a signal came, which the running process received too.
    """
    if not missing(verbs, folder, has_test_set):
        return
    _free_memory()
    with _alone(folder) as lock:
        # Another process may have done some meanwhile.
        for command in missing(verbs, folder, has_test_set):
            _run([command[0], str(folder), *command[1:]], lock)
            step = int(read_record(folder / "run.json")["step"])
            noted = {"step": step, "done": [*_noted(folder, step), command]}
            replace_file(folder / DONE, json.dumps(noted).encode() + b"\n")


def _run(arguments: list[str], lock: int) -> None:
    command = [sys.executable, "-m", "launcher.runs", *arguments]
    logger.info("job.after: python -m launcher.runs %s", shlex.join(arguments))
    # The training has already run this code.
    process = subprocess.Popen(
        [*command, "--trust"], env=without_rank(os.environ), pass_fds=(lock,)
    )
    code = _ended(process)
    if code != 0:
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        message = (
            f"job.after: the run is completed, but a command has ended with {how}. The same"
            " command does what is missing."
        )
        # It is not shown by whoever catches it, since training logs its own errors.
        logger.error(message)
        raise TrainingError(message)


@contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """Wait until no other process runs these commands.

    The processes of the commands inherit the lock: if this process is killed, they still have it.

    Yields:
        The descriptor of the lock's file.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        is_waiting = False
        while not _taken(descriptor):
            if not is_waiting:
                logger.info("job.after: waiting for another process that evaluates this run.")
            is_waiting = True
            signals.check()
            time.sleep(POLL)
        yield descriptor
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _commands(verbs: Sequence[str], has_test_set: bool) -> Iterator[list[str]]:
    for verb in dict.fromkeys(verbs):
        yield [verb]
        if verb == "evaluate" and has_test_set:
            yield [verb, "--split", "test"]


def _noted(folder: Path, step: int) -> list[object]:
    """The commands that are noted as done at this step."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        noted = parse_json((folder / DONE).read_bytes())
        if noted["step"] == step:
            return list(noted["done"])
    return []


def _is_evaluated(command: list[str], folder: Path, step: int) -> bool:
    """Return whether `evaluations.jsonl` has the result, whose command was killed just after it."""
    if command[0] != "evaluate":
        return False
    split = command[-1] if len(command) > 1 else "val"
    try:
        lines = (folder / "evaluations.jsonl").read_bytes().splitlines()
    except OSError:
        return False
    for line in lines:
        # A line that was cut off counts for nothing.
        with suppress(ValueError):
            found = parse_json(line)
            is_newest = Path(str(found.get("checkpoint"))).name == step_name(step)
            if (
                is_newest
                and "weights" not in found
                and any(str(name).startswith(f"{split}/") for name in found)
            ):
                return True
    return False


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
    torch = sys.modules.get("torch")
    gc.collect()
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
