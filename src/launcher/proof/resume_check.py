"""`job=resume_check`, which proves that a stop and a resume change nothing."""

import os
import tempfile
from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint
from launcher.config.run_config import RunConfig
from launcher.config.schema.checks import checkpointing
from launcher.config.schema.declared import parts, provided_by
from launcher.errors import ConfigError, TrainingError
from launcher.process.plural import plural
from launcher.process.ranks import Ranks
from launcher.proof.diff import TraceComparison
from launcher.proof.scratch_run import ScratchRun
from launcher.rundir.logs import setup_logging
from launcher.train.build import logger
from launcher.types import PositiveInt


class ResumeCheckJob:
    """Proves that a resume changes nothing, before a long run.

    The real configuration trains `2 * steps` steps, and again with a stop after `steps`, on as many
    ranks. Both copies are in a scratch folder, without trackers.

    Args:
        steps: number of steps before the stop, and again after it.
        scratch: the folder in which a folder for the copies is made. Default None: the temporary
            folder.
    """

    starts_ranks = True

    def __init__(self, steps: PositiveInt = 5, scratch: str | None = None):
        self.steps = steps
        self.scratch = scratch

    def run(self, config: RunConfig) -> dict[str, object] | None:
        """Train both copies and compare them; raise a TrainingError if they differ.

        Returns:
            The step of the stop, and the numbers of equal tensors and lines; None except on rank 0.
        """
        ranks = Ranks.from_env()
        setup_logging(None, ranks.rank)
        check(config, self.steps, ranks.world_size)
        if not ranks.is_main:
            return None
        nproc = (
            ranks.world_size if ranks.world_size > 1 else config.plain["dispatch"].get("nproc", 1)
        )
        try:
            with tempfile.TemporaryDirectory(prefix="launcher-check-", dir=self.scratch) as scratch:
                return self._check(config, Path(scratch), nproc)
        except CorruptCheckpoint as error:
            raise ConfigError(f"job=resume_check: {error}") from error
        except OSError as error:
            raise ConfigError(
                f"job=resume_check: {self.scratch or tempfile.gettempdir()} cannot be used"
                f" ({error.strerror or error}); set job.scratch to another folder."
            ) from error

    def _check(self, config: RunConfig, scratch: Path, nproc: object) -> dict[str, object]:
        end = 2 * self.steps
        straight, stopped = (
            scratch_run(config, scratch / name, nproc) for name in ("straight", "stopped")
        )
        logger.info("Training %s straight.", plural(end, "step"))
        straight.train(end)
        logger.info("Training %d steps again, with SIGTERM after step %d.", end, self.steps)
        code = stopped.train(end, self.steps)
        at = stopped.folder.newest_step()
        if at == 0 or at >= end:
            raise ConfigError(
                f"job=resume_check: the copy ended with exit code {code} at step {at}, not with"
                f" SIGTERM between steps 1 and {end}."
            )
        logger.info("Resuming from step %d in another process.", at)
        stopped.train(end)
        comparison = TraceComparison(straight, stopped, at)
        if not comparison.diff.is_equal:
            for line in comparison.report():
                logger.error(line)
            raise TrainingError(f"job=resume_check: a resume from step {at} changes the numbers.")
        tensors = comparison.diff.tensors
        lines = comparison.diff.lines
        logger.info(
            "Bitwise identical after SIGTERM at step %d and a resume: %d tensors, %d lines of"
            " metrics.jsonl, counters, and the random state of each rank.",
            at,
            tensors,
            lines,
        )
        return {"stopped_at": at, "tensors": tensors, "lines": lines}


def check(config: RunConfig, steps: int, world_size: int) -> None:
    """Check that the configuration can be stopped and resumed after so many steps, here."""
    if checkpointing(config.plain.get("hooks")) is None:
        raise ConfigError(
            "job=resume_check: hooks has no checkpointing, so this run cannot be resumed; add the"
            " hook."
        )
    max_steps = config.trainer.max_steps
    if max_steps is not None and max_steps < 2 * steps:
        raise ConfigError(
            f"job.steps={steps}: trains {2 * steps} steps, more than trainer.max_steps={max_steps};"
            f" use at most {max_steps // 2}."
        )
    nodes = int(os.environ.get("SLURM_NNODES") or 1)
    if world_size > 1 and nodes > 1:
        raise ConfigError(
            f"job=resume_check: runs on one machine, and this job has {nodes}; use"
            " dispatch.nodes=1."
        )


def scratch_run(config: RunConfig, root: Path, nproc: object) -> ScratchRun:
    """Return a traced copy that logs each step."""
    logging = {
        f"{path}.interval": 1
        for path, hook in parts("hooks", config.plain.get("hooks")).items()
        if "train/" in provided_by(hook)
    }
    label = f"job=resume_check, {root.name}"
    tree = config.replace(logging).stored
    return ScratchRun(root, tree, config.hydra, nproc, label, is_traced=True)
