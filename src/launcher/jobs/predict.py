"""job=predict: the model of a checkpoint over new data, one row for each sample.

The samples are divided into parts, and ranks take whole parts in turn. A part is written under its
final name in one rename, so the same command continues after any kill with the parts that are
missing. At the end rank 0 joins them in order. Batches and parts depend on the number of samples
alone, so the file is the same on any number of ranks and after any number of attempts.
"""

import fcntl
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from launcher.data.iterable import is_stream, length
from launcher.errors import ConfigError
from launcher.hooks.base import Records
from launcher.jobs.prediction_file import FORMATS, Columns
from launcher.jobs.stored_model import open_model
from launcher.process import deadline, signals
from launcher.process.ranks import Ranks, maximum, on_main
from launcher.process.rng import isolated_rng
from launcher.rundir.files import expanded, replace_file
from launcher.rundir.folder import RunFolder
from launcher.rundir.logs import setup_logging
from launcher.train.build import logger
from launcher.train.composed import Trainer
from launcher.types import NonEmptyText, PositiveInt

MAX_PARTS, MAX_BATCHES = 64, 32
"""A part has more than one batch if there would be more parts than this, and at most so many."""
COLUMNS = ("index", "prediction", "logits", "targets")
LOG = "predictions.jsonl"


class PredictJob:
    """Writes the predictions of a checkpoint for new data.

    Args:
        checkpoint: latest, best, a step, or the folder of a checkpoint.
        weights: `ema` (or `ema/0.999`, if there are several) is the average that `hooks.ema` keeps.
            Default None: the weights.
        file: file of the predictions, *.jsonl or *.parquet. Default None: a file in the run's
            folder.
        columns: columns to write. Default None: all columns.
        batch_size: samples of a forward pass. Default None: the size of a micro-batch, else of a
            batch.
        trust: run whatever code the checkpoint's configuration names.
    Raises:
        ConfigError: an unknown format or column.
    """

    def __init__(
        self,
        checkpoint: str | int = "latest",
        weights: str | None = None,
        file: NonEmptyText | None = None,
        columns: list[str] | None = None,
        batch_size: PositiveInt | None = None,
        trust: bool = False,
    ):
        if file is not None and Path(file).suffix not in FORMATS:
            raise ConfigError(f"job.file={file}: should end in {' or '.join(FORMATS)}.")
        for column in columns or ():
            if column not in COLUMNS:
                raise ConfigError(
                    f"job.columns: {column} is not a column; there are {', '.join(COLUMNS)}."
                )
        if columns is not None and not columns:
            raise ConfigError("job.columns=[]: names no column; leave the key out for all.")
        self.checkpoint, self.weights, self.trust = checkpoint, weights, trust
        self.file, self.batch_size = file, batch_size
        self.columns = None if columns is None else [name for name in COLUMNS if name in columns]

    def run(self, config: DictConfig) -> dict[str, object]:
        """Write the predictions.

        A line about them is printed, and added to the run's `predictions.jsonl`.

        Raises:
            ConfigError: there is no such checkpoint or no new data, or the model's `forward`
                returns no logits.
            signals.SignalExit: stopped by a signal; the same command continues.
        """
        folder, ranks = RunFolder(config.run.dir), Ranks.from_env()
        setup_logging(None, ranks.rank)
        model = open_model(config, self.checkpoint, self.weights, self.trust, has_loader=False)
        config, trainer, path = model.config, model.trainer, model.path
        dataset, count = _new_samples(trainer)
        size = self.batch_size or config.trainer.get("micro_batch_size") or config.data.batch_size
        target = self._target(config, folder)
        request = {
            "checkpoint": str(path.resolve()),
            "manifest": sha256((path / "manifest.json").read_bytes()).hexdigest(),
            "weights": self.weights,
            "columns": self.columns,
            "batch_size": size,
            "samples": count,
            "data": getattr(dataset, "fingerprint", None),
            "predict": OmegaConf.to_container(config, resolve=True)["data"]["predict"],  # type: ignore[index, call-overload]
            "precision": trainer.precision.name,
            "torch": torch.__version__,
        }
        with ExitStack() as stack, folder.being_written():
            parts = Parts(target, count, size, json.loads(json.dumps(request)))
            missing = on_main(lambda: parts.begin(stack, folder.path / LOG))
            if missing is None:
                logger.info("%s is complete already: nothing to do.", target)
                return {}
            if 0 < len(missing) < len(parts):
                done = len(parts) - len(missing)
                logger.info("%s continues: %d of %d parts are there.", target, done, len(parts))
            self._write(trainer, dataset, parts, missing)
            line = on_main(lambda: self._end(parts, path, model.step, folder))
        if ranks.is_main:
            print(json.dumps(line), flush=True)
        trainer.strategy.teardown()
        return {"rows": count, "file": str(target)}

    def _target(self, config: DictConfig, folder: RunFolder) -> Path:
        if self.file is not None:
            return expanded(self.file).absolute()
        named = config.data.predict
        named = named[0] if OmegaConf.is_list(named) else named
        name = Path(named).stem if isinstance(named, str) else "predictions"
        return folder.path.absolute() / "predictions" / f"{name.replace('*', '_')}.jsonl"

    def _write(
        self, trainer: Trainer, dataset: object, parts: "Parts", missing: Sequence[int]
    ) -> None:
        """Write this rank's share of the missing parts.

        Each rank makes the same number of forward passes, which may be collective: a rank with
        fewer batches repeats its last one.
        """
        ranks = trainer.strategy.ranks
        shares = [missing[rank :: ranks.world_size] for rank in range(ranks.world_size)]
        batches = [list(chain(*(parts.batches(number) for number in share))) for share in shares]
        rank_batches, turns = batches[ranks.rank], max(map(len, batches))
        padded = list(
            islice(chain(rank_batches, cycle(rank_batches[-1:] or [parts.range(0)])), turns)
        )
        rows = list[Columns]()
        trainer.model.eval()
        loader = trainer.context.data.batches(dataset, padded, trainer.device)
        with closing(loader), isolated_rng(), torch.no_grad():
            for turn, (batch, (start, stop)) in enumerate(zip(loader, padded, strict=True)):
                if signum := maximum(signals.received()):
                    logger.info("Stopped by a signal; the same command continues.")
                    raise signals.SignalExit(signum)
                deadline.progress()
                with trainer.strategy.forward_context():
                    _, records = trainer.forward(batch)
                if turn >= len(rank_batches):
                    continue
                rows.append(self._columns(trainer, dataset, records, start, stop))
                if parts.ends(stop):
                    parts.write(stop, rows)
                    rows = []
        # Afterwards every rank has written its parts.
        maximum(0)

    def _columns(
        self, trainer: Trainer, dataset: object, records: Records, start: int, stop: int
    ) -> Columns:
        """The rows of a batch by column.

        Raises:
            ConfigError: `forward` has returned no logits, or not for each sample.
        """
        name = type(trainer.unwrapped_model).__name__
        logits, targets = records.get("logits"), records.get("targets")
        if not isinstance(logits, Tensor):
            raise ConfigError(
                f"job=predict: {name}.forward returns no `logits` in evaluation; add"
                " {'logits': ..., 'targets': ...} to its records when the model is not training."
            )
        if logits.shape[:1] != (stop - start,):
            raise ConfigError(
                f"job=predict: {name}.forward returns logits of shape {tuple(logits.shape)} for"
                f" {stop - start} samples; their first axis should be the samples."
            )
        found: dict[str, Tensor] = {"index": torch.arange(start, stop)}
        if isinstance(targets, Tensor):
            if not targets.is_floating_point() and logits.ndim == targets.ndim + 1:
                found["prediction"] = logits.argmax(-1)
            if getattr(dataset, "has_targets", True) and targets.shape[:1] == logits.shape[:1]:
                found["targets"] = targets
        found["logits"] = logits
        chosen = self.columns or [column for column in COLUMNS if column in found]
        if missing := [column for column in chosen if column not in found]:
            raise ConfigError(
                f"job.columns: there is no {missing[0]} here; there are {', '.join(found)}."
            )
        return {column: _array(found[column]) for column in chosen}

    def _end(self, parts: "Parts", path: Path, step: int, folder: RunFolder) -> dict[str, object]:
        """Join the parts, and record it."""
        columns = parts.join()
        line = {
            "file": str(parts.target),
            "rows": parts.count,
            "columns": columns,
            "checkpoint": str(path),
            "step": step,
            "time": time.time(),
            "bytes": parts.target.stat().st_size,
        }
        with open(folder.path / LOG, "a") as file:
            file.write(json.dumps(line | {"request": parts.request}) + "\n")
        parts.remove()
        return line


def _new_samples(trainer: Trainer) -> tuple[object, int]:
    """The new dataset and its length.

    Raises:
        ConfigError: there is none, it is empty, or has no length.
    """
    dataset = trainer.context.data.predict_dataset()
    if dataset is None:
        raise ConfigError(
            "job=predict: data.predict is not set; name the new data: data.predict=new.jsonl, or"
            " runs predict RUN --data new.jsonl."
        )
    count = None if is_stream(dataset) else length(dataset)
    if not count:
        has = "no length" if count is None else "no samples"
        raise ConfigError(
            f"data.predict: {type(dataset).__name__} has {has}; predictions need a map-style"
            " dataset with at least one sample."
        )
    return dataset, count


def _array(tensor: Tensor) -> Any:
    tensor = tensor.detach()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return tensor.cpu().numpy()


@dataclass
class Parts:
    """The parts of a file of predictions, in a folder next to it.

    Args:
        target: the file.
        count: samples in all.
        size: samples of a batch.
        request: what the predictions depend on: parts of another request are deleted.
    """

    target: Path
    count: int
    size: int
    request: dict[str, object]

    def __post_init__(self) -> None:
        batches = -(-self.count // self.size)
        self.length = self.size * max(1, min(MAX_BATCHES, batches // MAX_PARTS))
        self.folder = self.target.with_name(f".{self.target.name}.parts")
        self.format = FORMATS[self.target.suffix]

    def __len__(self) -> int:
        return -(-self.count // self.length)

    def batches(self, number: int) -> Iterator[tuple[int, int]]:
        start, stop = number * self.length, min((number + 1) * self.length, self.count)
        return ((at, min(at + self.size, stop)) for at in range(start, stop, self.size))

    def range(self, batch: int) -> tuple[int, int]:
        return batch * self.size, min((batch + 1) * self.size, self.count)

    def ends(self, stop: int) -> bool:
        """Return whether a batch is the last of its part."""
        return stop == self.count or stop % self.length == 0

    def path(self, number: int) -> Path:
        return self.folder / f"{number:08d}{self.target.suffix}"

    def begin(self, stack: ExitStack, log: Path) -> list[int] | None:
        """Lock the folder of the parts until the stack closes.

        Returns:
            The numbers of the missing parts, or None if the file is already complete.
        Raises:
            ConfigError: another process writes it.
        """
        if self._is_complete(log):
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = stack.enter_context((self.folder / "lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"job.file={self.target}: another process is writing it; wait, or use another file."
            ) from None
        note = self.folder / "request.json"
        if not (note.exists() and json.loads(note.read_bytes()) == self.request):
            for old in self.folder.glob("[0-9]*"):
                old.unlink()
            replace_file(note, json.dumps(self.request).encode())
        return [number for number in range(len(self)) if not self.path(number).exists()]

    def _is_complete(self, log: Path) -> bool:
        if not (log.exists() and self.target.exists()):
            return False
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        of_file = [line for line in lines if line["file"] == str(self.target)]
        return (
            bool(of_file)
            and of_file[-1]["request"] == self.request
            and of_file[-1]["bytes"] == self.target.stat().st_size
        )

    def write(self, stop: int, rows: Sequence[Columns]) -> None:
        """Write the part that ends at this sample."""
        self.format.write(self.path((stop - 1) // self.length), rows)

    def join(self) -> list[str]:
        """Write the file of all parts. Returns the names of its columns."""
        return self.format.join(self.target, [self.path(number) for number in range(len(self))])

    def remove(self) -> None:
        shutil.rmtree(self.folder)
