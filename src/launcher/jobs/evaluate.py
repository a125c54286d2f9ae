"""`job=evaluate`, which computes the metrics of a checkpoint on a validation set or test set."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from launcher.checkpoint.manifest import NAME as MANIFEST
from launcher.checkpoint.manifest import CorruptCheckpoint
from launcher.config.run_config import RunConfig
from launcher.config.tree import with_text_keys
from launcher.errors import ConfigError
from launcher.hooks.evaluation import EvaluationHook
from launcher.hooks.metrics import Matrix, split_tables
from launcher.hooks.records import flatten, show
from launcher.jobs.stored_model import StoredModel, open_model
from launcher.process import signals, text_table
from launcher.process.files import read_file
from launcher.process.ranks import Ranks, all_gather, maximum, on_main
from launcher.rundir.folder import RunFolder, checkpoint_steps, step_name
from launcher.rundir.history import read_rows
from launcher.rundir.lock_holder import is_held
from launcher.rundir.logs import setup_logging

logger = logging.getLogger("launcher")
POLL = 1.0
"""Seconds between two looks for a checkpoint of a run that trains."""
NO_STEP_YET = -1


@dataclass
class EvaluateJob:
    """Computes the metrics of a checkpoint.

    Args:
        checkpoint, weights, trust: see `launcher.jobs.stored_model.open_model`.
        split: val or test. It chooses the data, and is the first part of the metrics' names.
        follow: evaluate every checkpoint that the run has, and while a process trains it, every
            checkpoint that it saves. A checkpoint that was evaluated so before is left out.
    """

    needs_optimizer = False
    code_keys = ("trust",)

    checkpoint: str | int = "latest"
    weights: str | None = None
    trust: bool = False
    split: Literal["val", "test"] = "val"
    follow: bool = False

    def __post_init__(self) -> None:
        if self.follow and self.checkpoint != "latest":
            raise ConfigError(
                f"job.checkpoint={self.checkpoint}: job.follow=true evaluates every checkpoint;"
                " leave one of them out."
            )

    def run(self, config: RunConfig) -> dict[str, float]:
        """Print the metrics and append them to `evaluations.jsonl`.

        Returns:
            The metrics of the checkpoint that was evaluated last.
        """
        folder, ranks = config.folder, Ranks.from_env()
        setup_logging(None, ranks.rank)
        if self.follow:
            on_main(lambda: wait_for_checkpoint(folder))
        model = open_model(config, self.checkpoint, self.weights, self.trust)
        hook = self._open_hook(model)
        evaluate = self._follow if self.follow else self._evaluate
        metrics = evaluate(model, hook, folder)
        model.trainer.strategy.teardown()
        return metrics

    def _open_hook(self, model: StoredModel) -> EvaluationHook:
        """Return the run's own hook, or a default one, with the loaders of the chosen set."""
        trainer = model.trainer
        own = (hook for hook in trainer.hooks if isinstance(hook, EvaluationHook))
        hook = next(own, None) or EvaluationHook()
        if self.split == "test":
            hook.loader = trainer.context.test_loader
            hook.max_samples = None
        if not hook.open(trainer.context):
            raise ConfigError(
                f"job.split={self.split}: the data have no such samples; set"
                f" data.{self.split}_dataset or use other data."
            )
        return hook

    def _evaluate(
        self,
        model: StoredModel,
        hook: EvaluationHook,
        folder: RunFolder,
        note: Mapping[str, str] | None = None,
    ) -> dict[str, float]:
        """Evaluate the loaded checkpoint; write and print its line, with the note."""
        metrics = hook.measure(model.trainer)
        if metrics is None:
            raise signals.SignalExit(maximum(signals.first_signal()))
        line = {"checkpoint": str(model.path), "step": model.step, "time": time.time()}
        if self.weights is not None:
            line["weights"] = self.weights
        line |= note or {}
        for name, value in flatten(metrics, f"{self.split}/").items():
            line[name] = value.values.tolist() if isinstance(value, Matrix) else value
        if Ranks.from_env().is_main:
            _write(folder, model.path.name, line)
        return flatten(split_tables(metrics)[0])

    def _follow(
        self, model: StoredModel, hook: EvaluationHook, folder: RunFolder
    ) -> dict[str, float]:
        following = CheckpointFollower(folder, self._request(model.config))
        metrics: dict[str, float] = {}
        while (step := on_main(following.next_step)) is not None:
            if step == NO_STEP_YET:
                continue
            problem = _load(model, folder.checkpoints / step_name(step), self.weights)
            problems = [text for text in all_gather(problem) if text is not None]
            if not problems:
                metrics = self._evaluate(model, hook, folder, following.note())
                continue
            is_gone: bool = on_main(lambda: following.is_gone(model.path))
            if not is_gone:
                raise ConfigError(f"{model.path} cannot be read: {problems[0]}.")
            logger.info("%s was deleted before it was evaluated.", model.path)
        return metrics

    def _request(self, config: RunConfig) -> str:
        """Return a digest of what metrics depend on, apart from the checkpoint."""
        plain = config.plain
        hook = (plain.get("hooks") or {}).get("evaluation") or {}
        parts = {name: hook.get(name) for name in ("metrics", "max_samples", "loader")}
        parts |= {"split": self.split, "weights": self.weights, "data": plain["data"]}
        return sha256(
            json.dumps(with_text_keys(parts), sort_keys=True, default=str).encode()
        ).hexdigest()[:12]


def _write(folder: RunFolder, checkpoint: str, line: dict[str, Any]) -> None:
    """Append the line to `evaluations.jsonl`; print it, on a terminal as a table."""
    with folder.explain_write_errors(), open(folder.path / "evaluations.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    if sys.stdout.isatty():
        print_table(f"{folder.path.parent.name}/{folder.path.name}, {checkpoint}", line)
    else:
        print(json.dumps(line), flush=True)


class CheckpointFollower:
    """The checkpoints of a run still to be evaluated for a request, used on rank 0."""

    def __init__(self, folder: RunFolder, request: str):
        self.folder = folder
        self.request = request
        self._gone: set[int] = set()
        self._manifest = ""

    def next_step(self) -> int | None:
        """Return the next step to evaluate, `NO_STEP_YET` if one may come, or None at the end."""
        # A checkpoint that is saved afterwards is seen the next time.
        is_trained = is_held(self.folder)
        done = self._read_done()
        for step in checkpoint_steps(self.folder.checkpoints):
            with suppress(OSError):
                manifest = self.folder.checkpoints / step_name(step) / MANIFEST
                self._manifest = sha256(read_file(manifest, follow=True)).hexdigest()
                if step not in self._gone and (step, self._manifest) not in done:
                    return step
        if not is_trained:
            return None
        time.sleep(POLL)
        signals.check()
        return NO_STEP_YET

    def note(self) -> dict[str, str]:
        """Return the keys of a line of `evaluations.jsonl` that mark the step as done."""
        return {"request": self.request, "manifest": self._manifest}

    def is_gone(self, path: Path) -> bool:
        """Return whether the run has deleted a checkpoint, and leave it out from now on."""
        self._gone.add(int(path.name.rpartition("-")[2]))
        return not (path / MANIFEST).exists()

    def _read_done(self) -> set[tuple[int, str]]:
        rows = read_rows(self.folder.path / "evaluations.jsonl")
        return {
            (row["step"], str(row.get("manifest")))
            for row in rows
            if row.get("request") == self.request and "step" in row
        }


def wait_for_checkpoint(folder: RunFolder) -> None:
    """Wait until the run has a checkpoint, as long as a process trains it."""
    while is_held(folder) and not checkpoint_steps(folder.checkpoints):
        time.sleep(POLL)
        signals.check()


def _load(model: StoredModel, path: Path, weights: str | None) -> str | None:
    """Load the weights of another checkpoint of the run, or return why it cannot be read."""
    try:
        model.load(path, weights)
    except (CorruptCheckpoint, OSError) as error:
        return str(error)
    return None


def print_table(title: str, line: dict[str, Any]) -> None:
    rows = []
    for name, value in line.items():
        if name.startswith(("val/", "test/")):
            is_table = isinstance(value, list)
            rows.append((name, f"{len(value)} x {len(value[0])}" if is_table else show(value, 6)))
    text_table.TextTable(
        ("metric", "value"), rows, frozenset((1,)), folds=True, title=title
    ).print()
