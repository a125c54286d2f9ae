"""job=evaluate: the held-out metrics of a run's chosen checkpoint."""

import json
import time
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from launcher.checkpoint.manifest import verify
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError
from launcher.hooks.evaluation import evaluate
from launcher.run import signals
from launcher.run.folder import RunFolder
from launcher.run.logs import setup_logging
from launcher.run.ranks import Ranks, maximum, on_main
from launcher.train.build import build_trainer, logger


class EvaluateJob:
    """
    Args:
        checkpoint: latest, best, or the folder of one.
    """

    def __init__(self, checkpoint: str = "latest"):
        self.checkpoint = checkpoint

    def run(self, config: DictConfig) -> dict[str, float]:
        """Prints one JSON line with the checkpoint, its step and the metrics, and adds it to `evaluations.jsonl`.

        Raises:
            ConfigError: the run has no such checkpoint, or its data hold nothing out.
        """
        folder, ranks = RunFolder(config.run.dir), Ranks.from_env()
        setup_logging(None, ranks.rank)
        path = Path(on_main(lambda: str(find_checkpoint(folder, self.checkpoint))))
        stored = StoredCheckpoint(path)
        data = instantiate(config.data)
        trainer = build_trainer(config, folder, to_train=False)
        trainer.strategy.load_weights(stored)
        batches = data.val_loader(
            batch_size=trainer.strategy.plan.micro_batch_size,
            rank=ranks.rank,
            world_size=ranks.world_size,
            device=trainer.device,
        )
        if batches is None:
            raise ConfigError("job=evaluate: this data holds nothing out; give data.val_dataset or another data.")
        metrics = evaluate(trainer.forward, trainer.model, batches, trainer.strategy.forward_context)
        if metrics is None:
            raise signals.Stop(maximum(signals.received()))
        line = {"checkpoint": str(path), "step": stored.manifest.step, "time": time.time()}
        line |= {f"val/{name}": value for name, value in metrics.items()}
        if ranks.is_main:
            logger.info("%s", json.dumps(line))
            with open(folder.path / "evaluations.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
        trainer.strategy.teardown()
        return metrics


def find_checkpoint(folder: RunFolder, wanted: str) -> Path:
    """A verified checkpoint of a run, by `latest`, `best` or its folder.

    Raises:
        ConfigError: there is none.
    """
    store = CheckpointStore(folder.checkpoints)
    if wanted in ("latest", "best"):
        step = store.linked(wanted)
        path = None if step is None else store.path(step)
    else:
        path = next((p for p in (Path(wanted), folder.checkpoints / wanted) if p.is_dir()), None)
    if path is None:
        raise ConfigError(
            f"job.checkpoint={wanted}: {folder.path} has no such checkpoint; train it first with the same command "
            "without job=, or name the run with run.id=<id>."
        )
    verify(path)
    return path
