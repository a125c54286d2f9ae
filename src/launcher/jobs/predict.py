"""job=predict: the model of a checkpoint over new data, one row for each sample.

Each rank writes rows of consecutive batches to a file, and at the end rank 0 joins the files.
Batches depend on the number of samples alone, so the result is the same on any number of ranks.
"""

import fcntl
import json
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import orjson
import torch
from torch import Tensor

from launcher.config.run_config import RunConfig
from launcher.data.declared import is_stream
from launcher.data.iterable import length
from launcher.errors import ConfigError
from launcher.hooks.view import Records
from launcher.jobs.stored_model import open_model
from launcher.process import deadline, signals
from launcher.process.files import expand, replacing
from launcher.process.ranks import Ranks, maximum, on_main
from launcher.process.rng import isolated_rng, seed_lane
from launcher.rundir.folder import RunFolder
from launcher.rundir.logs import setup_logging
from launcher.train.build import logger
from launcher.train.composed import Trainer
from launcher.types import NonEmptyText, PositiveInt

COLUMNS = ("index", "prediction", "logits", "targets")
LOG = "predictions.jsonl"
ENDING = ".jsonl"


@dataclass
class PredictJob:
    """Writes the predictions of a checkpoint for new data.

    Args:
        checkpoint, weights, trust: see `launcher.jobs.stored_model.open_model`.
        file: file of the predictions, *.jsonl. Default None: a file in the run's folder.
        columns: columns to write. Default None: all columns.
        batch_size: samples of a forward pass. Default None: the size of a micro-batch, else of a
            batch.
    """

    needs_optimizer = False
    reads = ("predict",)
    code_keys = ("trust",)

    checkpoint: str | int = "latest"
    weights: str | None = None
    file: NonEmptyText | None = None
    columns: list[Literal["index", "prediction", "logits", "targets"]] | None = None
    batch_size: PositiveInt | None = None
    trust: bool = False

    def __post_init__(self) -> None:
        if self.file is not None and Path(self.file).suffix != ENDING:
            raise ConfigError(f"job.file={self.file}: should end in {ENDING}.")

    def run(self, config: RunConfig) -> dict[str, object]:
        """Write the predictions, which appear once they are complete.

        A line about them is printed, and added to the run's `predictions.jsonl`.
        """
        folder = config.folder
        ranks = Ranks.from_env()
        setup_logging(None, ranks.rank)
        model = open_model(config, self.checkpoint, self.weights, self.trust, has_loader=False)
        dataset, count = _new_samples(model.trainer)
        data = model.config.plain["data"]
        micro_batch_size = model.config.trainer.micro_batch_size
        # The checkpoint's configuration has a number in place of `auto`.
        assert not isinstance(micro_batch_size, str)
        size = self.batch_size or micro_batch_size or data["batch_size"]
        target = self._target(model.config, folder)
        log = folder.path / LOG
        parts = target.with_name(f".{target.name}.parts")
        with ExitStack() as stack, folder.explain_write_errors():
            on_main(lambda: _claim(parts, target, stack))
            with open(parts / f"{ranks.rank}{ENDING}", "wb") as file:
                self._write(model.trainer, dataset, count, size, file)
            # Afterwards every rank has written its part.
            maximum(0)
            line = {
                "file": str(target),
                "rows": count,
                "checkpoint": str(model.path),
                "step": model.step,
            }
            on_main(lambda: _join(target, parts, ranks.world_size, log, line))
        model.trainer.strategy.teardown()
        return {"rows": count, "file": str(target)}

    def _target(self, config: RunConfig, folder: RunFolder) -> Path:
        if self.file is not None:
            return expand(self.file).absolute()
        data = config.plain["data"]["predict"]
        files = data if isinstance(data, list) else [data]
        name = "+".join(Path(file).stem for file in files if isinstance(file, str))[:100]
        name = name or "predictions"
        return folder.path.absolute() / "predictions" / f"{name.replace('*', '_')}{ENDING}"

    def _write(
        self, trainer: Trainer, dataset: object, count: int, size: int, file: BinaryIO
    ) -> None:
        """Write this rank's rows; with fewer batches it repeats its last, for collectives."""
        ranks = trainer.strategy.ranks
        batches = [(start, min(start + size, count)) for start in range(0, count, size)]
        first = len(batches) * ranks.rank // ranks.world_size
        end = len(batches) * (ranks.rank + 1) // ranks.world_size
        own = batches[first:end]
        turns = -(-len(batches) // ranks.world_size)
        padded = own + (own[-1:] or batches[:1]) * (turns - len(own))
        trainer.model.eval()
        loader = trainer.context.data.batches(dataset, padded, trainer.device)
        with closing(loader), isolated_rng(), torch.no_grad():
            for turn, (batch, (start, stop)) in enumerate(zip(loader, padded, strict=True)):
                signum = maximum(signals.first_signal())
                if signum:
                    logger.info("Stopped by a signal; the same command starts again.")
                    raise signals.SignalExit(signum)
                deadline.progress()
                # A model that draws random numbers writes the same on any number of ranks.
                seed_lane(trainer.strategy.plan.seed, trainer.step, start + 1)
                with trainer.strategy.forward_context():
                    _, records = trainer.forward(batch)
                if turn < len(own):
                    _write_rows(file, self._columns(trainer, dataset, records, start, stop))

    def _columns(
        self, trainer: Trainer, dataset: object, records: Records, start: int, stop: int
    ) -> dict[str, np.ndarray]:
        """Return the rows of a batch by column, with the samples as the first axis."""
        name = type(trainer.unwrapped_model).__name__
        logits = records.get("logits")
        targets = records.get("targets")
        if not isinstance(logits, Tensor) or logits.shape[:1] != (stop - start,):
            raise ConfigError(
                f"job=predict: {name}.forward returns no `logits` with a row for each sample in"
                " evaluation; add {'logits': ..., 'targets': ...} to its records when the model is"
                " not training."
            )
        columns = {"index": torch.arange(start, stop), "logits": logits}
        if isinstance(targets, Tensor):
            if not targets.is_floating_point() and logits.ndim == targets.ndim + 1:
                columns["prediction"] = logits.argmax(-1)
            if getattr(dataset, "has_targets", True) and targets.shape[:1] == logits.shape[:1]:
                columns["targets"] = targets
        chosen = self.columns or COLUMNS
        missing = [name for name in self.columns or () if name not in columns]
        if missing:
            names = ", ".join(columns)
            raise ConfigError(f"job.columns: there is no {missing[0]} here; there are {names}.")
        return {
            name: _array(columns[name]) for name in COLUMNS if name in chosen and name in columns
        }


def _new_samples(trainer: Trainer) -> tuple[object, int]:
    dataset = trainer.context.data.predict_dataset()
    if dataset is None:
        raise ConfigError("job=predict: names no new data; e.g. data.predict=new.jsonl.")
    count = None if is_stream(dataset) else length(dataset)
    if not count:
        raise ConfigError(
            f"data.predict: {type(dataset).__name__} should be a map-style dataset with at least"
            " one sample."
        )
    return dataset, count


def _array(tensor: Tensor) -> np.ndarray:
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


def _write_rows(file: BinaryIO, columns: dict[str, np.ndarray]) -> None:
    """Write a line for each row. A number that is not finite is null."""
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    for values in zip(*columns.values(), strict=True):
        file.write(orjson.dumps(dict(zip(columns, values, strict=True)), option=option))


def _claim(parts: Path, target: Path, stack: ExitStack) -> None:
    """Make and lock the folder of the ranks' files, and remove it when the stack closes."""
    parts.mkdir(parents=True, exist_ok=True)
    lock = stack.enter_context((parts / "lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"job.file={target}: another process is writing it; wait, or use another file."
        ) from None
    stack.callback(shutil.rmtree, parts, ignore_errors=True)


def _join(
    target: Path, parts: Path, world_size: int, log: Path, line: Mapping[str, object]
) -> None:
    """Write the file of all ranks' rows in one rename, and print and note the line about it."""
    with replacing(target) as temporary, open(temporary, "wb") as file:
        for rank in range(world_size):
            with open(parts / f"{rank}{ENDING}", "rb") as part:
                shutil.copyfileobj(part, file)
    with open(target, "rb") as file:
        columns = list(json.loads(file.readline()))
    text = json.dumps({**line, "columns": columns, "time": time.time()})
    with open(log, "a") as notes:
        notes.write(text + "\n")
    print(text, flush=True)
