"""Account for a run's training samples.

The account shows which samples were used at which step, and whether each was used once per epoch.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, UnsupportedCheckpoint
from launcher.data.mixture_order import MixtureOrder
from launcher.data.sampler import Order
from launcher.errors import ConfigError
from launcher.rundir.folder import checkpoint_steps, step_name
from launcher.rundir.history import read_rows
from launcher.runs.page import StdoutConsole, grid
from launcher.runs.rerun import add_trust
from launcher.runs.stored_command import origin_of
from launcher.runs.stored_run import StoredRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--samples",
        action="store_true",
        help="train nothing; show which samples the steps have used",
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="train nothing; print the indices of a step's samples"
    )
    add_trust(parser)


def run(audited: StoredRun, arguments: argparse.Namespace) -> int:
    """Print the account of a run's samples.

    Returns:
        0 if each sample was used at most once per epoch, and exactly once in a complete epoch,
        else 1.
    """
    ledger = SampleLedger.of(audited, arguments.trust)
    if arguments.json:
        chosen = ledger.ranges if arguments.step is None else [ledger.at(arguments.step)]
        for part in chosen:
            print(json.dumps(asdict(part) | {"indices": ledger.indices(part)}))
    elif arguments.step is not None:
        print(*ledger.indices(ledger.at(arguments.step)))
    else:
        page = StdoutConsole()
        page.print(attempts(audited, ledger))
        for message in ledger.messages():
            page.print(message, markup=False, soft_wrap=True)
    return int(not ledger.is_exact)


@dataclass(frozen=True)
class SampleRange:
    """The range [start, end) of the sample order that a step has used.

    It may be the range of several steps that cannot be distinguished.
    """

    first: int
    last: int
    start: int
    end: int
    attempt: int | None = None


class SampleCount(NamedTuple):
    """Number of samples used after a step."""

    step: int
    samples: int
    attempt: int | None


@dataclass
class SampleLedger:
    """The order of the samples, and its ranges that the steps have used.

    A step that was computed again after a resume is listed once.
    """

    order: Order
    ranges: list[SampleRange]

    @classmethod
    def of(cls, run: StoredRun, trust: bool = False) -> "SampleLedger":
        """Read the account of a run.

        Raises:
            ConfigError: the run does not count samples, or its order is not known.
        """
        points = counted(run)
        if not points:
            raise ConfigError(
                f"{run.label}: its metrics.jsonl has no sample counts, so the samples of a step are"
                " not known. A run of python -m launcher logs them; under BaseTrainer the loader"
                " needs an attribute `samples`."
            )
        batch = int((run.config.get("data") or {}).get("batch_size") or 0)
        start = int(run.attempts[0].get("start_step") or 0) if run.attempts else 0
        first = points[0]
        used = first.samples - (first.step - start) * batch if start else 0
        return cls(
            stored_order(run, trust),
            list(ranges_between([SampleCount(start, used, None), *points], batch)),
        )

    @property
    def is_exact(self) -> bool:
        return not self.issues()

    def issues(self) -> list[str]:
        """Yield messages about steps whose positions do not continue from the previous step."""
        issues = []
        for before, after in pairwise(self.ranges):
            if after.start != before.end or after.end < after.start:
                issues.append(
                    f"step {after.first} begins at position {after.start}, and step {before.last}"
                    f" ended at {before.end}"
                )
        return issues

    def at(self, step: int) -> SampleRange:
        for part in self.ranges:
            if part.first <= step <= part.last:
                return part
        last = self.ranges[-1].last
        raise ConfigError(f"--step={step}: must be from {self.ranges[0].first} to {last}.")

    def position(self, step: int) -> int | None:
        """Return the number of samples used after a step.

        Returns:
            None if it is known only for several steps together.
        """
        if step < self.ranges[0].first:
            return self.ranges[0].start
        return next((part.end for part in self.ranges if part.last == step), None)

    def indices(self, part: SampleRange) -> list[int]:
        """Return the samples of a range, in their order, as indices of the dataset."""
        return [
            int(index) for index in self.order.indices(part.start, max(0, part.end - part.start))
        ]

    def messages(self) -> Iterator[str]:
        """Count the uses of the samples of each epoch."""
        size, begin, end = self.order.size, self.ranges[0].start, self.ranges[-1].end
        if issues := self.issues():
            yield f"The count of samples does not follow from step to step: {'; '.join(issues)}."
            return
        if isinstance(self.order, MixtureOrder):
            yield from mixture_messages(self.order, begin, end)
            return
        first, last = begin // size, max(begin, end - 1) // size
        complete = [
            epoch
            for epoch in range(first, last + 1)
            if begin <= epoch * size and (epoch + 1) * size <= end
        ]
        if complete:
            name = (
                f"Epoch {complete[0] + 1}"
                if len(complete) == 1
                else f"Epochs {complete[0] + 1} to {complete[-1] + 1}"
            )
            yield f"{name}: {size} of {size} samples, each once."
        for epoch in sorted({first, last} - set(complete)):
            count = min(end, (epoch + 1) * size) - max(begin, epoch * size)
            rest = "" if epoch < last else "; it is not complete"
            yield f"Epoch {epoch + 1}: {count} of {size} samples, each once{rest}."
        joint = sum(part.last > part.first for part in self.ranges)
        if joint:
            yield (
                f"In {joint} intervals of metrics.jsonl, more samples were used than the steps"
                " need, since steps were repeated with new batches: which step used which sample"
                " is not known there."
            )


def mixture_messages(order: MixtureOrder, begin: int, end: int) -> Iterator[str]:
    """List the samples of each source, and its epochs."""
    for name, size, before, after in zip(
        order.names, order.sizes, order.counts(begin), order.counts(end), strict=True
    ):
        epochs, rest = divmod(int(after), int(size))
        yield (
            f"{name}: {after - before} samples. Since the start: {epochs} complete epochs of"
            f" {size}, each sample once in each, and {rest} samples of the next, each once."
        )


def counted(run: StoredRun) -> list[SampleCount]:
    """Read the sample counts in metrics.jsonl and in the checkpoints' manifests.

    Each lists a step once, even if it was computed several times.
    """
    points: dict[int, SampleCount] = {}
    root = run.folder.checkpoints
    for step in checkpoint_steps(root):
        try:
            saved = Manifest.read(root / step_name(step)).samples
        except (CorruptCheckpoint, UnsupportedCheckpoint, OSError):
            continue
        if saved is not None:
            points[step] = SampleCount(step, saved, None)
    for row in read_rows(run.folder.metrics_path):
        logged, samples = row.get("step"), row.get("samples")
        if isinstance(logged, int) and isinstance(samples, int) and logged > 0:
            points[logged] = SampleCount(logged, samples, row.get("attempt"))
    return [points[step] for step in sorted(points)]


def ranges_between(points: list[SampleCount], batch: int) -> Iterator[SampleRange]:
    """Return the ranges between the counts.

    Each step has used `batch` samples if that adds up. Otherwise the steps between two counts are
    one range.
    """
    for before, after in pairwise(points):
        steps, samples = after.step - before.step, after.samples - before.samples
        if samples != steps * batch:
            yield SampleRange(
                before.step + 1, after.step, before.samples, after.samples, after.attempt
            )
            continue
        for number in range(steps):
            start = before.samples + number * batch
            yield SampleRange(
                before.step + number + 1,
                before.step + number + 1,
                start,
                start + batch,
                after.attempt,
            )


def stored_order(run: StoredRun, trust: bool = False) -> Order:
    """The order in which the run's loaders read the training data.

    Raises:
        ConfigError: the data are iterable, cannot be read, or have changed since.
    """
    # Torch is imported late.
    from launcher.data.iterable import is_stream, length
    from launcher.data.loader import fingerprint, order_of

    source, dataset = training_data(run, trust)
    size = None if is_stream(dataset) else length(dataset)
    if size is None:
        raise ConfigError(
            f"{run.label}: its training data are iterable ({type(dataset).__name__}). The dataset"
            " itself determines their order, so the samples of a step are not known."
        )
    saved = saved_position(run.folder.checkpoints)
    was, now = saved.get("dataset"), fingerprint(dataset)
    if was is not None and was != now:
        raise ConfigError(
            f"{run.label}: its training data have changed from '{was}' to '{now}'; restore them."
        )
    order = order_of(dataset, int(run.config.get("seed") or 0), source.shuffle)
    # A fork may have had other weights before.
    if isinstance(order, MixtureOrder) and "weights" in saved:
        order.load(saved["weights"], int(saved["samples"]))
    return order


def training_data(run: StoredRun, trust: bool = False) -> tuple[Any, Any]:
    """Build the run's data source and its training dataset.

    Raises:
        ConfigError: they cannot be built from the run's configuration, it names code that is not
            allowed, or files are missing.
    """
    from hydra.errors import InstantiationException
    from omegaconf import OmegaConf

    from launcher.config.construct import instantiate
    from launcher.config.explain import explain
    from launcher.config.resolve import escaped
    from launcher.config.schema import target_not_found, without_own_keys
    from launcher.config.source import NotFound

    config = run.config.get("data")
    if not isinstance(config, dict):
        raise ConfigError(
            f"{run.label}: run.json has no configuration, so its training data are not known."
        )
    tree: Any = OmegaConf.create({"data": escaped(config)})
    checked = origin_of(run).checked(tree, ["data"], trust)
    try:
        source = instantiate(without_own_keys(checked.data))
        source.check()
        return source, source.train_dataset()
    except NotFound as error:
        raise ConfigError(
            str(target_not_found("data", str(config.get("_target_")), error))
        ) from error
    except InstantiationException as error:
        if messages := explain(error):
            raise ConfigError(*messages) from error
        raise


def saved_position(root: Path) -> dict[str, Any]:
    """Return the state of the data loader in the newest readable checkpoint, or an empty one."""
    for step in reversed(checkpoint_steps(root)):
        try:
            state = json.loads((root / step_name(step) / "state.json").read_bytes())
            position = dict(state["training_state"]["data_loader"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return position
    return {}


def attempts(run: StoredRun, ledger: SampleLedger) -> Any:
    """List each attempt with its steps and its samples.

    Steps that a later attempt computed again are listed, and the samples of the other steps.
    """
    table = grid("attempt", "steps", "computed again", "samples")
    every = run.attempts
    for number, attempt in enumerate(every):
        start = int(attempt.get("start_step") or 0)
        recorded = attempt.get("end_step")
        end = int(run.record.get("step") or start) if recorded is None else int(recorded)
        later = min(
            (int(other.get("start_step") or 0) for other in every[number + 1 :]), default=end
        )
        kept = max(start, min(end, later))
        first, last = ledger.position(start), ledger.position(kept)
        table.add_row(
            str(attempt.get("number")),
            steps(start, end),
            steps(kept, end),
            "-" if kept == start else f"{_shown(first)} to {_shown(last)}",
        )
    return table


def steps(start: int, end: int) -> str:
    """Format the steps after `start`, up to `end`."""
    return "-" if end <= start else str(end) if end == start + 1 else f"{start + 1} to {end}"


def _shown(position: int | None) -> str:
    return "?" if position is None else str(position)
