"""Bitwise differences between two trainings of the same steps.

It compares checkpoints (tensors, counters, and the random state of each rank), lines of metrics,
and the traces of the steps, which name the state that a resume has not restored.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from launcher.checkpoint.digests import is_left_out
from launcher.checkpoint.shards import as_bytes
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.proof.scratch_run import Traced
from launcher.rundir.folder import RunFolder, step_name
from launcher.rundir.history import is_measured, read_rows

MAX_SHOWN_VALUES = 3
RANDOM = "random state"
SAMPLES = "samples"
LOSS = "loss"
GRADIENTS = "gradients"
WEIGHTS = "weights"
USER_PARTS = "parts"
CAUSES = {
    RANDOM: "something draws from the global random generators outside of the steps, or seeds them",
    SAMPLES: (
        "the dataset, the sampler or the collate function has state that is not stored, or reads"
        " the clock"
    ),
    LOSS: (
        "the model has state outside of its parameters and buffers, or an operation does not repeat"
    ),
    GRADIENTS: (
        "a hook or a function of the model has state that is not stored, or an operation does not"
        " repeat"
    ),
    WEIGHTS: "the optimizer, the schedule or a hook has state that is not stored",
}
"""The values that a step reads and computes, in this order, and why the first one differs."""


@dataclass
class Diff:
    """Differences between two trainings of the same steps, if there are any.

    Args:
        tensors: number of tensors in the last checkpoint.
        lines: number of lines of metrics.jsonl.
        metrics: differences in metrics.jsonl, by step.
        states: tensors and states of the last checkpoint that differ.
    """

    tensors: int = 0
    lines: int = 0
    metrics: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        return not self.metrics and not self.states

    def texts(self) -> list[str]:
        return [
            *(f"metrics.jsonl, {text}" for text in self.metrics),
            *(f"checkpoint, {text}" for text in self.states),
        ]

    def first_texts(self) -> Iterator[str]:
        for place, texts in (("metrics.jsonl", self.metrics), ("checkpoint", self.states)):
            yield from (f"{place}, {text}" for text in texts[:MAX_SHOWN_VALUES])
            if len(texts) > MAX_SHOWN_VALUES:
                yield f"{place}, and {len(texts) - MAX_SHOWN_VALUES} more"


Lines = Mapping[int, Mapping[str, object]]
"""The line of each step: its values by name."""


def lines_of(folder: RunFolder, start: int, end: int) -> dict[int, dict[str, object]]:
    """Return the newest line of each step after `start`, without times."""
    return {
        step: {k: v for k, v in row.items() if k != "attempt" and not is_measured(k)}
        for row in read_rows(folder.metrics_path)
        if isinstance(step := row.get("step"), int) and (start < step <= end or start == step == 0)
    }


def line_differences(before: Lines, after: Lines, names: tuple[str, str]) -> Iterator[str]:
    """Describe the differences by step. Two NaN are equal, and 0.0 is not equal to -0.0."""
    for step in sorted({*before, *after}):
        if step not in before or step not in after:
            name = names[1] if step in after else names[0]
            yield f"step {step}: only {name} has a line of metrics.jsonl"
            continue
        for key in {**before[step], **after[step]}:
            old = before[step].get(key)
            new = after[step].get(key)
            if repr(old) != repr(new):
                yield f"step {step}: {key} {new!r} instead of {old!r}"


def diff(first: RunFolder, second: RunFolder, start: int, end: int, names: tuple[str, str]) -> Diff:
    """Compare two trainings: checkpoints at `end`, and lines of metrics since `start`."""
    before = lines_of(first, start, end)
    after = lines_of(second, start, end)
    result = Diff(lines=len(before), metrics=[*line_differences(before, after, names)])
    newest = second.newest_step()
    if newest != end:
        result.states = [f"the last one is of step {newest} instead of {end}"]
        return result
    before_end, after_end = (folder.checkpoints / step_name(end) for folder in (first, second))
    result.states = checkpoint_differences(before_end, after_end)
    result.tensors = len(StoredCheckpoint(after_end).names())
    return result


def checkpoint_differences(first: Path, second: Path) -> list[str]:
    """List the differences between two checkpoints, of any number of ranks, tensors first."""
    left = StoredCheckpoint(first)
    right = StoredCheckpoint(second)
    differing = list(_of_tensors(left, right))
    differing += _of_values("state", left.meta, right.meta)
    for rank in range(min(left.manifest.world_size, right.manifest.world_size)):
        differing += _of_values(f"rank {rank}", left.rank_state(rank), right.rank_state(rank))
    return [f"{name}: {text}" for name, text in differing]


def _of_tensors(left: StoredCheckpoint, right: StoredCheckpoint) -> Iterator[tuple[str, str]]:
    before = set(left.names())
    after = set(right.names())
    for name in sorted(before | after):
        if name not in before or name not in after:
            yield name, "only one of them has it"
            continue
        text = tensor_difference(left.read(name), right.read(name))
        if text is not None:
            yield name, text


def tensor_difference(before: torch.Tensor, after: torch.Tensor) -> str | None:
    """Describe how many elements differ, the first, and the largest distance, or return None."""
    if before.dtype != after.dtype or before.shape != after.shape:
        return f"{after.dtype} {list(after.shape)} instead of {before.dtype} {list(before.shape)}"
    rows = before.numel(), -1
    bits = [
        torch.frombuffer(bytearray(as_bytes(tensor)), dtype=torch.uint8)
        for tensor in (before, after)
        if tensor.numel()
    ]
    if not bits or torch.equal(*bits):
        return None
    unequal = (bits[0].view(rows) != bits[1].view(rows)).any(dim=1)
    at = int(unequal.nonzero()[0])
    index = [int(number) for number in torch.unravel_index(torch.tensor(at), before.shape)]
    old = before.reshape(-1)
    new = after.reshape(-1)
    text = (
        f"{int(unequal.sum())} of {len(old)} elements, the first at {index}: {new[at].item()!r}"
        f" instead of {old[at].item()!r}"
    )
    if before.is_floating_point():
        text += f"; the largest distance is {float((new.double() - old.double()).abs().max()):.3g}"
    return text


def _of_values(name: str, before: Any, after: Any) -> Iterator[tuple[str, str]]:
    """Yield the differing leaves of two nested states."""
    if is_left_out(name):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in {**before, **after}:
            yield from _of_values(f"{name}/{key}", before.get(key), after.get(key))
    elif isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        text = tensor_difference(before, after)
        if text is not None:
            yield name, text
    elif _is_sequence(before) and _is_sequence(after) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from _of_values(f"{name}/{number}", *pair)
    elif repr(before) != repr(after):
        yield name, f"{_short(after)} instead of {_short(before)}"


def _is_sequence(value: object) -> bool:
    return isinstance(value, list | tuple)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class TraceComparison:
    """A training without a stop, and one that was resumed at a step (`at`)."""

    def __init__(self, straight: Traced, resumed: Traced, at: int, since: int = 0):
        self.straight = straight
        self.resumed = resumed
        self.at = at
        names = "the straight training", "the resumed training"
        end = straight.folder.newest_step()
        self.diff = diff(straight.folder, resumed.folder, since, end, names)
        self.before, self.after = read_trace(straight.trace), read_trace(resumed.trace)

    def report(self) -> Iterator[str]:
        yield from self.causes()
        yield from self.diff.first_texts()

    def causes(self) -> Iterator[str]:
        """Yield the first difference and its cause, and the state that was not restored."""
        first = self.first()
        if first is None:
            if not self.diff.is_equal:
                yield f"A resume from step {self.at} changes the state: {self.diff.texts()[0]}."
            return
        step, rank, event = first
        when = "after" if step > self.at else "before"
        yield (
            f"The first difference: the {event} of step {step} on rank {rank}, {when} the stop"
            f" at step {self.at}."
        )
        if step <= self.at:
            yield f"This training does not repeat even without a stop: {CAUSES[event]}."
            return
        for text in self.list_not_restored() or [CAUSES[event]]:
            yield f"Not restored: {text}."
        for text in self.list_changes()[:1]:
            yield (
                f"The checkpoint of step {self.at} is not the state of a training up to it: {text}."
            )

    def first(self) -> tuple[int, int, str] | None:
        """Return the step, rank and kind of the first difference in the traces."""
        for step in sorted({step for lines in self.before.values() for step in lines}):
            for event in CAUSES:
                for rank, lines in self.before.items():
                    old = lines.get(step, {}).get(event)
                    new = self.after.get(rank, {}).get(step, {}).get(event)
                    if old != new and old is not None and new is not None:
                        return step, rank, event
        return None

    def list_not_restored(self) -> list[str]:
        """List the attributes of the user's parts with which the resumed process began wrongly."""
        texts: dict[str, None] = {}
        for rank, lines in self.before.items():
            then = lines.get(self.at, {}).get(USER_PARTS, {})
            now = self.after.get(rank, {}).get(self.at, {}).get(USER_PARTS, {})
            for name, value in then.items():
                if now.get(name) != value:
                    texts[f"{name} is {now.get(name, 'not set')} instead of {value}"] = None
        return list(texts)

    def list_changes(self) -> list[str]:
        """List the differences between the checkpoints of the stop, if both have saved there."""
        name = step_name(self.at)
        straight, resumed = (
            training.folder.checkpoints / name for training in (self.straight, self.resumed)
        )
        if not (straight.is_dir() and resumed.is_dir()):
            return []
        return checkpoint_differences(straight, resumed)


def read_trace(folder: Path) -> dict[int, dict[int, dict[str, Any]]]:
    """Read the lines of `TraceHook` by rank and step; several of one step are merged."""
    ranks: dict[int, dict[int, dict[str, Any]]] = {}
    for file in sorted(folder.glob("rank-*.jsonl")):
        steps = ranks.setdefault(int(file.stem.partition("-")[2]), {})
        for line in read_rows(file):
            steps[line["step"]] = steps.get(line["step"], {}) | line
    return ranks
