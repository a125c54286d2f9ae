"""Starts a run at step 0 from the weights of another."""

from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint
from launcher.checkpoint.shards import ShardReader
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import digest_weights
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import BaseHook
from launcher.hooks.view import TrainerView
from launcher.process import ranks
from launcher.resume.weights_source import differences, fit_names, open_weights
from launcher.strategies.weights import model_tensors, names_of_tied, reject_misfits


class InitFromHook(BaseHook):
    """Loads model weights before other hooks see the run, unless it has a checkpoint.

    Args:
        source: a safetensors file, the folder of a checkpoint, of a run (its best, else its latest
            checkpoint) or of a Hugging Face model (its safetensors files), or a run's id.
        outputs: the folder of the runs, to find a run by its id.
        strict: every tensor must match. With False, tensors that do not match are only reported.
    """

    def __init__(self, source: Path, outputs: Path = Path("outputs"), strict: bool = True):
        self.source = source
        self.outputs = outputs
        self.strict = strict

    def on_start(self, trainer: TrainerView) -> None:
        store = CheckpointStore((trainer.workspace or Path()) / "checkpoints")
        if ranks.broadcast(bool(store.steps_with_broken())):
            return
        names = model_tensors(trainer.model)
        tied = names_of_tied(trainer.model)
        source = open_weights(self.source, self.outputs)
        weights = fit_names(source, [*names, *tied])
        try:
            problems = differences(weights, tied)
            if self.strict:
                reject_misfits(problems)
            problems += trainer.strategy.load_weights(weights, self.strict)
            self._note_digest(trainer, source)
        except TrainingError as error:
            raise ConfigError(
                f"run.init_from={self.source}: {error} run.init_strict=false loads the"
                " tensors that fit."
            ) from error
        except CorruptCheckpoint as error:
            raise ConfigError(f"run.init_from={self.source}: {error}.") from error
        for problem in problems:
            trainer.logger.warning("run.init_from: %s", problem)
        missing = sum(1 for problem in problems if problem.split(":", 1)[0] in names)
        path = self.source if self.source.is_file() else weights.path
        trainer.logger.info("Weights from %s: %d of %d.", path, len(names) - missing, len(names))

    def _note_digest(self, trainer: TrainerView, weights: ShardReader) -> None:
        """Note what the run began from: the same file, or run, may have other weights later."""
        if not trainer.strategy.ranks.is_main:
            return
        trainer.context.initial_weights = digest_weights(weights)
        if trainer.context.shared is not None:
            trainer.context.shared.weights = trainer.context.initial_weights
