"""job=lr_find: a learning rate range test of a configuration."""

import json
import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from launcher.config.resolve import escaped
from launcher.errors import ConfigError
from launcher.jobs.trial import trial_trainer
from launcher.run.files import replace_file
from launcher.run.logs import setup_logging
from launcher.run.ranks import Ranks
from launcher.train.build import logger
from launcher.train.lr_find import LRFinderResult, find_lr
from launcher.types import PositiveFloat, PositiveInt


class LRFindJob:
    """Trains on one process with a learning rate that grows from step to step, and suggests the rate at which the loss
    falls fastest. Writes `<folder>/<run name>-<run id>.json` and `.png`, and no run.

    Args:
        start_lr, end_lr: the first and the last learning rate.
        num_iterations: optimizer steps.
        smoothing_factor: weight of each new loss in the moving average of losses; 1: no smoothing.
        divergence_threshold: stop when the average is more than this many times its minimum so far.
        folder: where the two files are written.
    Raises:
        ConfigError: the range is empty.
    """

    def __init__(
        self,
        start_lr: PositiveFloat = 1e-7,
        end_lr: PositiveFloat = 1.0,
        num_iterations: PositiveInt = 100,
        smoothing_factor: PositiveFloat = 0.05,
        divergence_threshold: PositiveFloat = 4.0,
        folder: str = "outputs/lr_find",
    ):
        if start_lr >= end_lr:
            raise ConfigError(f"job.start_lr={start_lr:g}: must be less than job.end_lr={end_lr:g}.")
        if num_iterations < 2:
            raise ConfigError(f"job.num_iterations={num_iterations}: must be at least 2.")
        self.range = {"start_lr": start_lr, "end_lr": end_lr, "num_iterations": num_iterations}
        self.range |= {"smoothing_factor": smoothing_factor, "divergence_threshold": divergence_threshold}
        self.folder = Path(folder)

    def run(self, config: DictConfig) -> dict[str, Any] | None:
        """
        Returns:
            `LRFinderResult.to_dict()`; None on all ranks but the first.
        Raises:
            ConfigError: a part cannot be built, or the training set is empty.
        """
        ranks = Ranks.from_env()
        setup_logging(None, ranks.rank)
        if not ranks.is_main:
            return None
        trainer = trial_trainer(_on_one_process(config, ranks.world_size))
        try:
            result = find_lr(trainer, **self.range)  # type: ignore[arg-type]
        except ValueError as error:
            raise ConfigError(f"job=lr_find: {error}") from error
        file = self.folder / f"{config.run.name}-{config.run.id}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(result.to_dict(), indent=1).encode())
        written = [str(file), *([str(picture)] if (picture := _draw(result, file.with_suffix(".png"))) else [])]
        _report(result, written)
        trainer.strategy.teardown()
        return result.to_dict()


def _on_one_process(config: DictConfig, world_size: int) -> DictConfig:
    """The configuration of the same step on one process, which accumulates the work of the ranks."""
    os.environ["WORLD_SIZE"] = "1"  # the strategy reads it
    config = OmegaConf.create(escaped(OmegaConf.to_container(config, resolve=True)))
    config.strategy = {"_target_": "launcher.strategies.none.NoStrategy"}
    if config.trainer.micro_batch_size is None and config.data.batch_size % world_size == 0:
        config.trainer.micro_batch_size = config.data.batch_size // world_size
    return config


def _report(result: LRFinderResult, written: list[str]) -> None:
    if result.stopped:
        logger.info("Stopped after %d steps: %s.", len(result.losses), result.stopped)
    logger.info("The curve is in %s.", " and ".join(written))
    if result.suggested_lr is None:
        logger.warning("No suggestion: the loss does not fall, or was not finite; see the curve, or set job.end_lr.")
    else:
        print(f"optimizer.lr={result.suggested_lr:.2g}", flush=True)


def _draw(result: LRFinderResult, path: Path) -> Path | None:
    """A picture of the curve; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        logger.warning("No picture of the curve: it needs matplotlib; pip install 'torch-launcher[pictures]'.")
        return None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(result.lrs[: len(result.losses)], result.losses, color="tab:blue")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss (smoothed)")
    if result.suggested_lr is not None:
        loss = result.losses[result.lrs.index(result.suggested_lr)]
        axes.plot([result.suggested_lr], [loss], "o", color="tab:red", label=f"suggested: {result.suggested_lr:.2g}")
        axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    return path
