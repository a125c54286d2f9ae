"""The trainer of a job that uses the weights of a checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from launcher.checkpoint.find_checkpoint import find_checkpoint
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.config.run_config import RunConfig
from launcher.config.settings import AUTO
from launcher.errors import ConfigError, TrainingError
from launcher.jobs.stored_config import config_for
from launcher.process.ranks import on_main
from launcher.train.build import build_trainer
from launcher.train.composed import Trainer


@dataclass
class StoredModel:
    """A trainer with the weights of a checkpoint, and the configuration and step of that."""

    config: RunConfig
    trainer: Trainer
    path: Path

    def load(self, path: Path, weights: str | None) -> None:
        self.path = path
        stored = StoredCheckpoint(path).use_weights(weights)
        self.trainer.strategy.load_weights(stored)
        self.trainer.state.step = stored.manifest.step

    @property
    def step(self) -> int:
        return self.trainer.step


def open_model(
    config: RunConfig,
    checkpoint: str | int,
    weights: str | None,
    trust: bool,
    has_loader: bool = True,
) -> StoredModel:
    """Build the model of a run and load its weights, on all ranks.

    Args:
        config: the configuration of the job.
        checkpoint: latest, best, a step, or the folder of a checkpoint.
        weights: `ema` (or `ema/0.999`, if there are several) is the average that `hooks.ema` keeps.
            Default None: the weights.
        trust: run whatever code the checkpoint's configuration names.
        has_loader: build the loader of the training data too.
    """
    folder = config.folder
    path = Path(
        on_main(lambda: str(find_checkpoint(folder.checkpoints, checkpoint, "job.checkpoint")))
    )
    config = config_for(config, path, trust)
    if config.trainer.micro_batch_size == AUTO:
        # A trainer that was not composed stores no size in place of `auto`.
        config = config.replace({"trainer.micro_batch_size": None})
    trainer = build_trainer(config, folder, to_train=False, has_loader=has_loader)
    model = StoredModel(config, trainer, path)
    try:
        model.load(path, weights)
    except TrainingError as error:
        raise ConfigError(f"job.checkpoint={checkpoint}: {error}") from error
    return model
