"""A copy of a run that trains in a scratch folder, on this machine and without trackers."""

import errno
import os
import re
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.options import own_target
from launcher.config.tree import Node
from launcher.dispatch.child_command import ENTRY
from launcher.errors import REJECTED, ConfigError
from launcher.process.child import describe_end, last_lines, start_child
from launcher.process.files import expand
from launcher.process.process_id import RANK_VARIABLES
from launcher.process.waits import wait_for_process
from launcher.rundir.folder import RunFolder, checkpoint_of, step_name, weights_source
from launcher.rundir.history import read_rows

CONTINUED_FILES = ("metrics.jsonl", "media.jsonl")
"""Files that a resume cuts back to its checkpoint, and continues."""
STOP_CODE = 128 + signal.SIGTERM
"""The exit code of a training that SIGTERM has stopped."""
LAST_LINES = 15
LOG_PREFIX = re.compile(r"\d\d:\d\d:\d\d ")
DISK_FULL = os.strerror(errno.ENOSPC)
SLURM_PREFIX = "SLURM_"
"""Prefix of the variables of a SLURM job. The copy must not react to the end or requeueing of that
job."""


@dataclass
class Traced:
    """The run folder of a training, and the folder of its `TraceHook`."""

    folder: RunFolder
    trace: Path


class ScratchRun(Traced):
    """A copy of a run, which trains in processes of its own.

    Args:
        root: the folder for all files of the copy, which is made.
        config: the configuration of the run as it is stored.
        hydra: Hydra's node that was recorded with it.
        ranks: `dispatch.nproc`.
        label: name of the copy in messages.
        is_traced: trace each step, see `launcher.proof.trace`.
        save_at: also save at this step.
    """

    def __init__(
        self,
        root: Path,
        config: Node,
        hydra: Node | None,
        ranks: object,
        label: str,
        is_traced: bool = False,
        save_at: int | None = None,
    ):
        self.root = root
        self.config = config
        self.hydra = hydra
        self.ranks = ranks
        self.label = label
        self.is_traced = is_traced
        self.save_at = save_at
        self.outputs = root / "outputs"
        folder = self.outputs / str(config["run"]["name"]) / str(config["run"]["id"])
        super().__init__(RunFolder(folder), root / "trace")
        self.folder.path.mkdir(parents=True)
        self.trace.mkdir()

    def begin_from(self, run: RunFolder, step: int) -> None:
        """Copy what a resume of a run from the checkpoint of this step needs."""
        if not step:
            return
        saved = step_name(step)
        shutil.copytree(run.checkpoints / saved, self.folder.checkpoints / saved)
        for name in CONTINUED_FILES:
            with suppress(FileNotFoundError):
                shutil.copyfile(run.path / name, self.folder.path / name)

    def train(self, end: int, stop_at: int | None = None) -> int:
        """Train up to a step, or to a SIGTERM; return the exit code, negative for a signal."""
        from launcher.config.run_config import save_job

        file = self.root / "job.yaml"
        log = self.root / "log"
        save_job(file, self.settings(end, stop_at), self.hydra)
        code = run_job(file, log)
        is_stopped = stop_at is not None and code == STOP_CODE
        if not (is_stopped and self.folder.newest_step()):
            check_ended(code, log, self.label)
        return code

    def evaluate(self, step: int, split: str) -> dict[str, Any]:
        """Evaluate a checkpoint of the copy; return the line of its metrics."""
        from launcher.config.run_config import replace_values, save_job

        file = self.root / "job.yaml"
        log = self.root / "log"
        # The configuration is read by whoever made this copy, which checks what it names.
        job = {"_target_": own_target("job", "evaluate"), "checkpoint": step, "split": split}
        settings = replace_values(self.settings(step, None), {"job": {**job, "trust": True}})
        save_job(file, settings, self.hydra)
        check_ended(run_job(file, log), log, self.label)
        return next(reversed(list(read_rows(self.folder.path / "evaluations.jsonl"))))

    def settings(self, end: int, stop_at: int | None) -> dict[str, Any]:
        """Return the configuration of the copy, as it is stored."""
        from launcher.config.run_config import replace_values
        from launcher.config.schema.checks import checkpointing

        hooks = {name: dict(hook) for name, hook in self.config["hooks"].items() if hook}
        saving = None if self.save_at is None else checkpointing(hooks)
        for name, hook in hooks.items():
            if "path" in hook and is_outside(self.folder.path, hook["path"]):
                hook["path"] = str(name)
            if "load" in hook:
                hook["load"] = "auto"
            if hook is saving:
                hook["keep_steps"] = [self.save_at]
        if self.is_traced:
            trace = "launcher.proof.trace.TraceHook"
            hooks["proof_trace"] = {"_target_": trace, "folder": str(self.trace)}
        if stop_at is not None:
            hooks["proof_stop"] = {"_target_": "launcher.proof.stop.StopHook", "step": stop_at}
        dispatch = {"nproc": self.ranks, "grace": None}
        values = {
            "paths.outputs": str(self.outputs),
            "run.dir": str(self.folder.path),
            "run.resume": "auto",
            # The folder is the copy's own, so there is no other configuration to compare with.
            "run.identity": None,
            "tracker": {},
            "dispatch": {"_target_": own_target("dispatch", "local"), **dispatch},
            "job": {"_target_": own_target("job", "train")},
            "trainer.pause_at": end,
            "hooks": hooks,
            **starts_of(self.config),
        }
        return replace_values(self.config, values)


def starts_of(config: Node) -> dict[str, str]:
    """Return the paths of what a run starts from, which the copy would not find by an id."""
    outputs = expand(config["paths"]["outputs"])
    run = config["run"]
    paths = dict[str, str]()
    fork = run.get("fork_from")
    weights = run.get("init_from")
    if fork and (path := checkpoint_of(outputs, fork)) is not None:
        paths["run.fork_from"] = str(path.absolute())
    source = weights_source(outputs, weights) if weights else None
    if source is not None and source != expand(weights):
        paths["run.init_from"] = str(source.absolute())
    return paths


def is_outside(folder: Path, path: object) -> bool:
    """Return whether a hook's path is outside its run's folder, where the run itself writes."""
    text = str(path)
    inner = Path(os.path.normpath(folder / os.path.expanduser(text)))
    return "://" in text or not inner.is_relative_to(folder)


def without_job(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that neither a rank nor a SLURM job has set."""
    return {
        name: value
        for name, value in variables.items()
        if name not in RANK_VARIABLES and not name.startswith(SLURM_PREFIX)
    }


def run_job(file: Path, log: Path) -> int:
    """Run the job of a file in a process, and return its exit code."""
    env = without_job(os.environ)
    log.unlink(missing_ok=True)
    process = start_child([*ENTRY, "job", str(file)], log, env)
    try:
        return wait_for_process(process)
    finally:
        process.terminate()
        process.wait()


def check_ended(code: int, log: Path, label: str) -> None:
    """Raise a ConfigError if a training has failed."""
    if not code:
        return
    lines = last_lines(log, LAST_LINES)
    if any(DISK_FULL in line for line in lines):
        raise ConfigError(
            f"{label}: {DISK_FULL}; train in another folder (--scratch, job.scratch)."
        )
    if code == REJECTED:
        errors = [line for line in lines if not LOG_PREFIX.match(line)]
        raise ConfigError(f"{label}: cannot be trained here: {' '.join(errors)}")
    raise ConfigError(f"{label}: the training {describe_end(code)}:", *lines)
