"""`job=resume_check`, which proves that a stop and a resume change nothing.

It trains some steps twice, once uninterrupted and once with a stop and a resume, and compares every
bit.
"""

import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from launcher.checkpoint.manifest import CorruptCheckpoint
from launcher.checkpoint.traces import Comparison, Traced
from launcher.config.resolve import escaped, stored
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import BaseHook, TrainerView
from launcher.jobs.dry_run import remove_folders_of_hydra
from launcher.process.ranks import Ranks
from launcher.rundir.copied import check_ended, start, trace_hook, write_job
from launcher.rundir.folder import RunFolder, step_name
from launcher.rundir.logs import setup_logging
from launcher.train.build import logger
from launcher.types import PositiveInt

CHECKPOINTING = "launcher.hooks.checkpointing.CheckpointingHook"
LOGGING = "launcher.hooks.logging.LoggingHook"
WAIT = 600.0
"""Seconds within which a checkpoint must be durable before the kill."""
STOPPED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Stop:
    """The way in which a copy is stopped.

    Args:
        after: number of steps before the stop.
        kill: stop with SIGKILL, once the checkpoint of that step is saved. Otherwise stop with
            SIGTERM.
    """

    after: int
    kill: bool


class ResumeCheckJob:
    """Proves that a resume changes nothing, before a long run.

    The real configuration trains `2 * steps` steps, and again with a stop after `steps`, on as many
    ranks. Both copies are in a scratch folder, without trackers.

    Args:
        steps: number of steps before the stop, and again after it.
        kill: kill all ranks with SIGKILL once a checkpoint is saved, instead of SIGTERM.
        scratch: the folder in which a folder for the copies is made. Default None: the temporary
            folder.
    """

    def __init__(self, steps: PositiveInt = 5, kill: bool = False, scratch: str | None = None):
        self.stop, self.scratch = Stop(steps, kill), scratch

    def run(self, config: DictConfig) -> dict[str, object] | None:
        """Train both copies and compare them.

        Returns:
            The step of the stop, and the numbers of equal tensors and lines, or None on all ranks
                but the first.
        Raises:
            TrainingError: the two copies differ, with exit code 1.
            ConfigError: the configuration cannot be checked, or a copy has failed.
        """
        ranks = Ranks.from_env()
        setup_logging(None, ranks.rank)
        check(config, self.stop.after)
        remove_folders_of_hydra(RunFolder(config.run.dir))
        if not ranks.is_main:
            return None
        nproc = ranks.world_size if ranks.world_size > 1 else config.dispatch.get("nproc", 1)
        try:
            with tempfile.TemporaryDirectory(prefix="launcher-check-", dir=self.scratch) as scratch:
                return self._check(config, Path(scratch), nproc)
        except CorruptCheckpoint as error:
            raise ConfigError(f"job=resume_check: {error}") from error
        except OSError as error:
            raise ConfigError(
                "job=resume_check:"
                f" {tempfile.gettempdir() if self.scratch is None else self.scratch} cannot be used"
                f" ({error.strerror or error}); set job.scratch to another folder."
            ) from error

    def _check(self, config: DictConfig, scratch: Path, nproc: object) -> dict[str, object]:
        end = 2 * self.stop.after
        straight, stopped = (
            Copy(scratch / "straight", config, nproc),
            Copy(scratch / "stopped", config, nproc),
        )
        how = "kill -9" if self.stop.kill else "SIGTERM"
        logger.info("Training %d steps straight.", end)
        straight.train(end, None)
        logger.info("Training %d steps again, with %s after step %d.", end, how, self.stop.after)
        code = stopped.train(end, self.stop)
        at = stopped.newest()
        if at == 0 or at >= end:
            raise ConfigError(
                f"job=resume_check: the copy ended with exit code {code} at step {at}, not with"
                f" {how} between steps 1 and {end}."
            )
        logger.info("Resuming from step %d in another process.", at)
        stopped.train(end, None)
        comparison = Comparison(straight, stopped, at)
        if comparison.differences:
            for line in comparison.report():
                logger.error(line)
            raise TrainingError(f"job=resume_check: a resume from step {at} changes the numbers.")
        tensors, lines = comparison.tensors, len(straight.lines(end))
        logger.info(
            "Bitwise identical after %s at step %d and a resume: %d tensors, %d lines of"
            " metrics.jsonl, counters, and the random state of each rank.",
            how,
            at,
            tensors,
            lines,
        )
        return {"stopped_at": at, "tensors": tensors, "lines": lines}


def check(config: DictConfig, steps: int) -> None:
    """Check that a configuration can be checked.

    Raises:
        ConfigError: the run saves nothing, is shorter than the check, or has ranks on several
            machines.
    """
    if not any(hook and hook.get("_target_") == CHECKPOINTING for hook in config.hooks.values()):
        raise ConfigError(
            "job=resume_check: hooks has no checkpointing, so this run cannot be resumed; add the"
            " hook."
        )
    max_steps = config.trainer.get("max_steps")
    if max_steps is not None and max_steps < 2 * steps:
        raise ConfigError(
            f"job.steps={steps}: trains {2 * steps} steps, more than trainer.max_steps={max_steps};"
            f" use at most {max_steps // 2}."
        )
    nodes = int(os.environ.get("SLURM_NNODES") or 1) if Ranks.from_env().world_size > 1 else 1
    if nodes > 1:
        raise ConfigError(
            f"job=resume_check: runs on one machine, and this job has {nodes}; use"
            " dispatch.nodes=1."
        )


class Copy(Traced):
    """A copy of the configuration, in a scratch folder of its own."""

    def __init__(self, scratch: Path, config: DictConfig, nproc: object):
        self.scratch, self.nproc = scratch, nproc
        self.tree = escaped(stored(config))
        self.outputs = scratch / "outputs"
        super().__init__(
            RunFolder(self.outputs / config.run.name / config.run.id), scratch / "trace"
        )
        self.trace.mkdir(parents=True)
        self.folder.path.mkdir(parents=True)

    def train(self, end: int, stop: Stop | None) -> int:
        """Train up to a step in a process of its own.

        Returns:
            The exit code.
        Raises:
            ConfigError: the training failed.
        """
        config: Any = OmegaConf.create(self.tree)
        for hook in config.hooks.values():
            if hook and hook.get("_target_") == LOGGING:
                hook.interval = 1
            if hook and hook.get("_target_") == CHECKPOINTING and stop is not None and stop.kill:
                hook.interval = stop.after
        config.hooks.resume_check_trace = trace_hook(self.trace)
        if stop is not None:
            node = {
                "_target_": "launcher.jobs.resume_check.StopHook",
                "step": stop.after,
                "kill": stop.kill,
            }
            config.hooks.resume_check_stop = node
        hydra = (
            OmegaConf.to_container(HydraConfig.get(), resolve=False)
            if HydraConfig.initialized()
            else {}
        )
        file, log = self.scratch / "job.yaml", self.scratch / "log"
        write_job(file, config, hydra, self.folder, self.outputs, end, self.nproc)
        code = start(file, log)
        if stop is None or self.newest() == 0 or (code != STOPPED and not stop.kill):
            check_ended(code, log, f"job=resume_check, {self.scratch.name}")
        return code


class StopHook(BaseHook):
    """Stops a training from within, at the same step on every rank.

    Args:
        step: the last step before the stop.
        kill: stop with SIGKILL, in the step after it, once its checkpoint is saved. Otherwise stop
            with SIGTERM.
    """

    def __init__(self, step: PositiveInt, kill: bool):
        self.step, self.kill = step, kill

    def on_batch(self, trainer: TrainerView, batch: Any) -> None:
        if not self.kill and trainer.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.kill and trainer.step == self.step + 1:
            assert trainer.workspace is not None
            saved = RunFolder(trainer.workspace).checkpoints / step_name(self.step)
            end = time.monotonic() + WAIT
            while not saved.is_dir():
                if time.monotonic() > end:
                    raise TrainingError(f"{saved} was not saved within {WAIT:.0f} seconds.")
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
