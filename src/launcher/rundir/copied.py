"""Copies of a run that train in a scratch folder.

The module writes the job, runs the process, and compares the lines of metrics.
"""

import errno
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.rundir.history import is_measured, read_rows

COMMAND = (sys.executable, "-m", "launcher.cli.job")
LAST_LINES = 15
REJECTED = 2
"""The exit code of a configuration that cannot be trained."""
LOGGED = re.compile(r"\d\d:\d\d:\d\d ")
FULL = os.strerror(errno.ENOSPC)
OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables by which a process would consider itself one of several ranks."""
OF_A_STEP = "SLURM_"
"""Prefix of the variables of a SLURM job. The copy must not react to the end or requeueing of that
job."""


def write_job(
    file: Path, config: Any, hydra: Any, folder: RunFolder, outputs: Path, end: int, ranks: object
) -> None:
    """Write the job of a copy.

    It trains in a folder of its own up to a step, on this machine and without trackers.

    Args:
        file: file of the job, for `train`.
        config: a run's configuration, which is changed.
        hydra: Hydra's node that was recorded with it.
        folder: the copy's folder.
        outputs: `paths.outputs` of that folder.
        end: the step at which the copy pauses.
        ranks: `dispatch.nproc`.
    """
    from omegaconf import OmegaConf

    config.paths.outputs, config.run.dir = str(outputs), str(folder.path)
    # The folder is the copy's own, so there is no other configuration to compare with.
    config.run.resume, config.run.identity = "auto", None
    config.tracker = {}
    config.dispatch = {
        "_target_": "launcher.dispatch.local.LocalDispatch",
        "nproc": ranks,
        "grace": None,
    }
    config.job = {"_target_": "launcher.jobs.train.TrainJob"}
    config.trainer.pause_at = end
    for name, hook in config.hooks.items():
        if hook and "path" in hook and is_outside(folder.path, hook.path):
            hook.path = str(name)
        if hook and "load" in hook:
            hook.load = "auto"
    OmegaConf.save(OmegaConf.create({"config": config, "hydra": hydra}), file)


def trace_hook(folder: Path) -> dict[str, str]:
    """The node of the hook that traces a copy's steps, see `launcher.checkpoint.traces`.

    Args:
        folder: for the traces of all ranks.
    """
    return {"_target_": "launcher.jobs.trace.TraceHook", "folder": str(folder)}


def is_outside(folder: Path, path: object) -> bool:
    """Return whether a hook's path is outside its run's folder, where the run itself writes."""
    text = str(path)
    return "://" in text or not Path(
        os.path.normpath(folder / os.path.expanduser(text))
    ).is_relative_to(folder)


def start(file: Path, log: Path, poll: Callable[[], object] | None = None) -> int:
    """Train a copy in a process of its own, and wait for its end.

    Args:
        file: see `write_job`.
        log: gets what the process prints.
        poll: called until the process has ended.
    Returns:
        The exit code; negative for a signal that killed the process.
    """
    env = {name: value for name, value in os.environ.items() if name not in OF_A_RANK}
    env = {name: value for name, value in env.items() if not name.startswith(OF_A_STEP)}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*COMMAND, str(file)],
            env={**env, "LAUNCHER_PARENT": str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                if poll is not None:
                    poll()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    return process.returncode


def check_ended(code: int, log: Path, what: str, origin: str = "") -> None:
    """Check that a copy has ended without an error.

    Args:
        code: the exit code of a copy.
        log: what it has printed.
        what: describes the copy.
        origin: describes the machine of the run.

    Raises:
        ConfigError: the copy has failed.
    """
    if not code:
        return
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    if any(FULL in line for line in lines):
        raise ConfigError(f"{what}: {FULL}; train in another folder (--scratch, job.scratch).")
    if code == REJECTED:
        errors = [line for line in lines if not LOGGED.match(line)]
        raise ConfigError(f"{what}: cannot be trained here{origin}: {' '.join(errors)}")
    raise ConfigError(f"{what}: the training ended with exit code {code}:", *lines)


def lines_of(folder: RunFolder, start: int, end: int) -> dict[int, dict[str, object]]:
    """The newest line of each step after `start`, without times."""
    lines = {}
    for row in read_rows(folder.metrics_path):
        step = row.get("step")
        if isinstance(step, int) and (start < step <= end or start == step == 0):
            lines[step] = {
                key: value
                for key, value in row.items()
                if key != "attempt" and not is_measured(key)
            }
    return lines


def line_differences(
    before: Mapping[int, Mapping[str, object]],
    after: Mapping[int, Mapping[str, object]],
    names: tuple[str, str],
) -> list[str]:
    """Describe the differences between the lines of two runs, by step.

    Args:
        before: the lines of the first run, see `lines_of`.
        after: the lines of the second run.
        names: of the two runs.
    """
    differences: list[str] = []
    for step in sorted({*before, *after}):
        differences += _line_difference(step, before.get(step), after.get(step), names)
    return differences


def _line_difference(
    step: int,
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
    names: tuple[str, str],
) -> Iterator[str]:
    if before is None or after is None:
        yield f"step {step}: only {names[before is None]} has a line of metrics.jsonl"
        return
    for key in [*before, *(key for key in after if key not in before)]:
        if before.get(key) != after.get(key):
            yield f"step {step}: {key} {after.get(key)!r} instead of {before.get(key)!r}"
