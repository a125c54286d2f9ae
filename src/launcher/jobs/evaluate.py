"""`job=evaluate`, which computes the metrics of a run's checkpoint.

They are of its validation set or test set.
"""

import json
import sys
import time
from typing import Any, Literal

from omegaconf import DictConfig

from launcher.errors import ConfigError
from launcher.hooks.evaluation import EvaluationHook
from launcher.hooks.matrices import split_matrices
from launcher.hooks.records import flatten, show
from launcher.jobs.stored_model import open_model
from launcher.process import signals
from launcher.process.ranks import Ranks, maximum
from launcher.rundir.folder import RunFolder
from launcher.rundir.logs import console, setup_logging
from launcher.train.composed import Trainer


class EvaluateJob:
    """Computes the metrics of a checkpoint.

    Args:
        checkpoint: latest, best, a step, or the folder of a checkpoint.
        weights: `ema` (or `ema/0.999`, if there are several) is the average that `hooks.ema` keeps.
            Default None: the weights.
        split: val or test. It chooses the data, and is the first part of the metrics' names.
        trust: run whatever code the checkpoint's configuration names.
    """

    def __init__(
        self,
        checkpoint: str | int = "latest",
        weights: str | None = None,
        trust: bool = False,
        split: Literal["val", "test"] = "val",
    ):
        self.checkpoint, self.weights, self.trust, self.split = checkpoint, weights, trust, split

    def run(self, config: DictConfig) -> dict[str, float]:
        """Print the metrics: a table on a terminal, elsewhere a JSON line.

        The line has the checkpoint, its step and the metrics. It is also appended to the run's
        `evaluations.jsonl`.

        Uses the checkpoint's configuration, see `config_for`.

        Raises:
            ConfigError: there is no such checkpoint, it is damaged, or its data have no such set.
        """
        folder, ranks = RunFolder(config.run.dir), Ranks.from_env()
        setup_logging(None, ranks.rank)
        model = open_model(config, self.checkpoint, self.weights, self.trust)
        trainer = model.trainer
        hook = _hook(trainer)
        if self.split == "test":
            hook.loader, hook.max_samples = trainer.context.test_loader, None
        hook.bind(trainer.context)
        if not hook.open():
            key, name = (
                ("val_dataset", "validation") if self.split == "val" else ("test_dataset", "test")
            )
            raise ConfigError(
                f"job.split={self.split}: the data have no {name} set; set data.{key} or use other"
                " data."
            )
        metrics = hook.measure(trainer)
        if metrics is None:
            raise signals.SignalExit(maximum(signals.received()))
        line = {"checkpoint": str(model.path), "step": model.step, "time": time.time()}
        if self.weights is not None:
            line["weights"] = self.weights
        line |= flatten(metrics, f"{self.split}/")
        if ranks.is_main:
            with folder.being_written(), open(folder.path / "evaluations.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
            if sys.stdout.isatty():
                print_table(
                    f"{folder.path.parent.name}/{folder.path.name}, {model.path.name}", line
                )
            else:
                print(json.dumps(line), flush=True)
        trainer.strategy.teardown()
        return flatten(split_matrices(metrics)[0])


def _hook(trainer: Trainer) -> EvaluationHook:
    """Return the run's own hook, with its metrics and number of samples, or a default one."""
    return next(
        (hook for hook in trainer.hooks if isinstance(hook, EvaluationHook)), EvaluationHook()
    )


def print_table(title: str, line: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in line.items():
        if name.startswith(("val/", "test/")):
            is_matrix = isinstance(value, list)
            table.add_row(name, f"{len(value)} x {len(value[0])}" if is_matrix else show(value, 6))
    console().print(title, soft_wrap=True)
    console().print(table)
