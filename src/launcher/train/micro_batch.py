"""`trainer.micro_batch_size=auto`: halved from the rank's share until two steps fit the memory.

The steps are made by a trainer of their own, which is dropped. So the run begins as if the size had
been set: same weights, random state and samples.
"""

import gc

import torch

from launcher.config.run_config import RunConfig
from launcher.config.schema.checks import batch_issue
from launcher.config.settings import AUTO
from launcher.errors import ConfigError, TrainingError, is_out_of_memory
from launcher.hooks.base import BaseHook
from launcher.hooks.view import TrainerView, TrainState
from launcher.process.ranks import STARTING, TIMEOUT, Ranks, exchange, on_main
from launcher.rundir.folder import RunFolder
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.train.build import build_trainer, logger
from launcher.train.composed import Trainer

STEPS = 2
"""The second step has the optimizer's state from its start."""


def with_micro_batch_size(config: RunConfig, folder: RunFolder) -> RunConfig:
    """Return the configuration with a number in place of `auto`, the same on all ranks."""
    if config.trainer.micro_batch_size != AUTO:
        return config
    batch_size = config.plain["data"]["batch_size"]
    world_size = Ranks.from_env().world_size
    issue = batch_issue(batch_size, world_size)
    if issue:
        raise ConfigError(str(issue))
    share = batch_size // world_size
    first, is_kept = on_main(lambda: earlier_size(folder, share, world_size))
    size = first
    too_large = list[int]()
    try:
        while not is_kept and (text := first_error(config, folder, size)):
            if size == 1:
                raise TrainingError(text)
            too_large.append(size)
            size = halve(size, share)
    except Exception as error:
        if is_out_of_memory(f"{type(error).__name__}: {error}"):
            tried = ", ".join(map(str, [*too_large, size]))
            text = "trainer.micro_batch_size=%s: no size fits the memory; tried: %s."
            logger.error(text, AUTO, tried)
        raise
    why = "as before" if is_kept else f"{STEPS} steps fit the memory"
    if too_large:
        why += f", not with {' or '.join(map(str, too_large))}"
    logger.info("trainer.micro_batch_size=%s: %d (%s).", AUTO, size, why)
    return config.replace({"trainer.micro_batch_size": size})


def halve(size: int, share: int) -> int:
    """Return the largest divisor of the share that is at most half of the size."""
    return next((each for each in range(size // 2, 0, -1) if share % each == 0), 1)


def earlier_size(folder: RunFolder, share: int, world_size: int) -> tuple[int, bool]:
    """Return the size to begin with, and whether it is known to fit.

    It is the size of the newest attempt with as many ranks, or less if that ran out of memory.
    """
    # A record that is damaged is reported elsewhere.
    for attempt in reversed(RunOnDisk.read(folder).attempts):
        size = attempt.get("micro_batch_size")
        if attempt.get("world_size") == world_size and size and share % size == 0:
            is_kept = not is_out_of_memory(attempt.get("reason") or "")
            return (size if is_kept else halve(size, share)), is_kept
    return share, False


def first_error(config: RunConfig, folder: RunFolder, size: int) -> str:
    """Make two steps; return the first rank's out-of-memory error, or no text.

    It is raised if `size` is 1, or if other ranks still wait for this one in a collective.
    """
    config = config.replace({"trainer.micro_batch_size": size, "hooks": {}, "tracker": {}})
    try:
        trainer = build_trainer(config, folder)
        try:
            return _steps(trainer, is_last=size == 1)
        finally:
            trainer.strategy.teardown()
            del trainer
    finally:
        # Reference cycles would keep the trainer's memory.
        gc.collect()
        # Graphs of another size would make the compiler replace the size by a symbol.
        torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _steps(trainer: Trainer, is_last: bool) -> str:
    strategy = trainer.strategy
    count = trainer.gradient_accumulation_steps
    if strategy.ranks.is_distributed and not strategy.forward_is_collective:
        # The first pass then exchanges nothing, so a rank may run out of memory alone.
        trainer.gradient_accumulation_steps = max(2, count)
    trainer.hooks = [_Trial(count)]
    trainer.lr_scheduler = None
    trainer.pause_at = None
    trainer.state = TrainState(STEPS + 1)
    try:
        trainer.train()
    except _Ended as end:
        return str(end)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if not is_out_of_memory(text) or exchange(text, STARTING) is None or is_last:
            raise
        return text
    return ""


class _Ended(Exception):
    """The end of the steps, with the error of another rank."""


class _Trial(BaseHook):
    """Lets the ranks agree after the first pass, and after the last step."""

    def __init__(self, grad_accum_steps: int):
        self.grad_accum_steps = grad_accum_steps
        self._passes = 0

    def on_batch(self, trainer: TrainerView, batch: object) -> None:
        if self._passes == 1 and (error := _error_of_others()):
            raise _Ended(error)
        if self._passes and self.grad_accum_steps == 1:
            trainer.strategy.zero_grad()  # a step of the run has only one pass
        self._passes += 1

    def on_after_step(self, trainer: TrainerView) -> None:
        if trainer.step == STEPS:
            raise _Ended(_error_of_others())


def _error_of_others() -> str:
    return next(filter(None, exchange("", TIMEOUT) or []), "")
