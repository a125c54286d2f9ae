"""Trains copies of a run between two of its steps, in a scratch folder."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.checkpoint.manifest import Manifest
from launcher.config.trust import Origin
from launcher.rundir.copied import check_ended, start, trace_hook, write_job
from launcher.rundir.folder import RunFolder, step_name
from launcher.rundir.provenance import MACHINE
from launcher.runs import replay_job
from launcher.runs.rerun import outputs_of
from launcher.runs.stored_run import StoredRun

COPIED = ("metrics.jsonl", "media.jsonl")
"""Files that a resume cuts back to its checkpoint, and continues."""
REPLACED = ("tracker", "dispatch", "job")
"""Nodes that a replay has of its own, see `write_job`."""
CHECKPOINTING = "launcher.hooks.checkpointing.CheckpointingHook"


@dataclass(frozen=True)
class Copier:
    """Trains copies of a run under the configuration that one of its checkpoints has stored.

    Args:
        run: what is copied.
        source: the checkpoint.
        ranks: how many the run had.
        root: a folder for the copies.
        dispatch: settings of SLURM's dispatch; None: train on this machine.
    """

    run: StoredRun
    source: Path
    ranks: int
    root: Path
    dispatch: Mapping[str, object] | None

    @classmethod
    @contextmanager
    def of(
        cls,
        run: StoredRun,
        end: int,
        scratch: Path | None,
        trust: bool,
        dispatch: Mapping[str, object] | None,
    ) -> "Iterator[Copier]":
        """Make a copier with a folder that is removed at the end.

        Args:
            run: what is copied.
            end: the step of the checkpoint whose configuration is used.
            scratch: where the folder is made; None: the temporary folder.
            trust: whatever code the checkpoint's configuration names may run.
            dispatch: see the class.
        Raises:
            CorruptCheckpoint: the checkpoint is gone or damaged.
            ConfigError: its configuration names code that is not allowed.
        """
        source = run.folder.checkpoints / step_name(end)
        ranks = Manifest.read(source).world_size
        check(run, source / "config.yaml", trust)
        if dispatch is not None:
            dispatch = replay_job.for_ranks(dispatch, ranks, run.label)
            scratch = (scratch or outputs_of(run.folder.path, run.name)).absolute()
        with tempfile.TemporaryDirectory(
            prefix=".launcher-replay-",
            dir=scratch,
            ignore_cleanup_errors=dispatch is not None,  # the end of a job may still write
        ) as root:
            yield cls(run, source, ranks, Path(root), dispatch)

    def train(
        self,
        name: str,
        first: int,
        end: int,
        watch: Callable[[Path], Any] | None = None,
        trace: Path | None = None,
        keep: int = 0,
    ) -> RunFolder:
        """Train a copy from one step to another.

        Args:
            name: of the copy's own folder of runs.
            first: the step of a checkpoint, or 0.
            end: the last step.
            watch: gets the copy's folder, and returns a function that is called until the training
                has ended.
            trace: a folder for the traces of its steps; None: they are not traced.
            keep: also save at this step.
        Raises:
            ConfigError: the training failed.
        """
        from omegaconf import OmegaConf

        folder = RunFolder(self.root / name / self.run.name / self.run.id)
        if first:
            saved = step_name(first)
            shutil.copytree(self.run.folder.checkpoints / saved, folder.checkpoints / saved)
            for copied in COPIED:
                with suppress(FileNotFoundError):
                    shutil.copyfile(self.run.folder.path / copied, folder.path / copied)
        else:
            folder.path.mkdir(parents=True)
        file = self.root / f"{name}.yaml"
        self._write(file, folder, end, trace, keep)
        what, poll = f"{self.run.label}, steps {first} to {end}", watch and watch(folder.path)
        if self.dispatch is None:
            code = start(file, log := self.root / f"{name}.log", poll)
            check_ended(code, log, what, self._origin())
        else:
            job = OmegaConf.load(file)
            replay_job.train(job.config, job.hydra, folder, self.dispatch, what, poll)
        return folder

    def _origin(self) -> str:
        device = loaded(self.source / MACHINE).get("device")
        if device is None:
            return ""
        return f" (the run was on {device}, {self.ranks} rank{'s' * (self.ranks != 1)})"

    def _write(
        self, file: Path, folder: RunFolder, end: int, trace: Path | None, keep: int
    ) -> None:
        from omegaconf import OmegaConf

        config: Any = OmegaConf.load(self.source / "config.yaml")
        if trace is not None:
            trace.mkdir(parents=True)
            config.hooks.replay_trace = trace_hook(trace)
        for hook in config.hooks.values():
            if keep and hook and hook.get("_target_") == CHECKPOINTING:
                hook.keep_steps = [keep]
        try:
            hydra = OmegaConf.load(self.run.folder.hydra / "hydra.yaml").hydra
        except (OSError, ValueError, AttributeError):
            hydra = {}
        outputs = outputs_of(folder.path, self.run.name)
        write_job(file, config, hydra, folder, outputs, end, self.ranks)


def loaded(file: Path) -> dict[str, object]:
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def check(run: StoredRun, file: Path, trust: bool) -> None:
    """Check what a replay builds of a checkpoint's configuration (see `launcher.config.trust`).

    Raises:
        ConfigError: code that is not allowed.
    """
    from omegaconf import OmegaConf

    config: Any = OmegaConf.load(file)
    built = [key for key in map(str, config) if key not in REPLACED]
    Origin(file, run.folder.path).checked(config, built, trust)
