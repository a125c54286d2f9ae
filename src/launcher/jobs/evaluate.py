"""job=evaluate: the held-out metrics of a run's chosen checkpoint."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from launcher.checkpoint.manifest import verify
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError
from launcher.hooks.evaluation import EvaluationHook, evaluate
from launcher.hooks.records import show
from launcher.run import signals
from launcher.run.folder import RunFolder
from launcher.run.logs import console, setup_logging
from launcher.run.ranks import Ranks, maximum, on_main
from launcher.train.build import build_trainer


class EvaluateJob:
    """
    Args:
        checkpoint: latest, best, or the folder of one.
    """

    def __init__(self, checkpoint: str = "latest"):
        self.checkpoint = checkpoint

    def run(self, config: DictConfig) -> dict[str, float]:
        """Prints a table of the metrics on a terminal; elsewhere one JSON line with the checkpoint, its step and the
        metrics. Adds that line to the run's `evaluations.jsonl`.

        Raises:
            ConfigError: the run has no such checkpoint, or its data hold nothing out.
        """
        folder, ranks = RunFolder(config.run.dir), Ranks.from_env()
        setup_logging(None, ranks.rank)
        path = Path(on_main(lambda: str(find_checkpoint(folder, self.checkpoint))))
        stored = StoredCheckpoint(path)
        trainer = build_trainer(config, folder, to_train=False)
        trainer.strategy.load_weights(stored)
        hook = next((hook for hook in trainer.hooks if isinstance(hook, EvaluationHook)), EvaluationHook())
        hook.bind(trainer.context)
        batches = hook.loader() if hook.loader is not None else None
        if batches is None:
            raise ConfigError("job=evaluate: the data hold nothing out; set data.val_dataset or use other data.")
        metrics = evaluate(trainer.forward, trainer.model, batches, trainer.strategy.forward_context)
        if metrics is None:
            raise signals.Stop(maximum(signals.received()))
        line = {"checkpoint": str(path), "step": stored.manifest.step, "time": time.time()}
        line |= {f"val/{name}": value for name, value in metrics.items()}
        if ranks.is_main:
            with open(folder.path / "evaluations.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
            if sys.stdout.isatty():
                print_table(f"{folder.path.parent.name}/{folder.path.name}, {path.name}", line)
            else:
                print(json.dumps(line), flush=True)
        trainer.strategy.teardown()
        return metrics


def print_table(title: str, line: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in line.items():
        if name.startswith("val/"):
            table.add_row(name, show(value, 6))
    console().print(table)


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
