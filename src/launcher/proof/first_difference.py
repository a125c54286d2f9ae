"""The first difference between two trainings of the same steps, and what is equal before it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from launcher.checkpoint.stored import StoredCheckpoint
from launcher.proof.diff import (
    CAUSES,
    GRADIENTS,
    LOSS,
    RANDOM,
    SAMPLES,
    WEIGHTS,
    checkpoint_differences,
    line_differences,
    lines_of,
)
from launcher.proof.side import Side

NAMES = {RANDOM: RANDOM, SAMPLES: SAMPLES, LOSS: LOSS, GRADIENTS: "gradient", WEIGHTS: "update"}
BY_NAME = (GRADIENTS, WEIGHTS)
"""Kinds of values that are compared for each parameter."""


@dataclass(frozen=True)
class Difference:
    """The first value that differs.

    Args:
        step: its step; 0 is before the first one.
        kind: one of `NAMES`, or a description of another value.
        rank: the rank on which it was seen.
        names: the parameter's name on each side, for a gradient or an update.
    """

    step: int
    kind: str
    rank: int = 0
    names: tuple[str, str] | None = None

    def describe(self, values: str = "") -> str:
        """Return the first difference, and what is equal until then."""
        if self.kind not in NAMES:
            return self.kind
        place = f" of {self.names[1]}" if self.names else ""
        what = "initial weights" if self.is_initial else NAMES[self.kind]
        rank = f" on rank {self.rank}" if self.rank else ""
        where = "before the first step" if self.is_initial else f"from step {self.step}"
        text = f"differs {where}: {what}{place}{values}{rank}"
        equal = [] if self.is_initial else [kind for kind in NAMES if kind in before(self.kind)]
        return f"{text}; {' and '.join(equal)} are equal until then" if len(equal) > 1 else text

    @property
    def is_initial(self) -> bool:
        return self.step == 0 and self.kind == WEIGHTS


def before(kind: str) -> list[str]:
    """Return the kinds of values that a step has before one, the nearest first, at most two."""
    kinds = list(NAMES)
    return kinds[: kinds.index(kind)][-2:]


@dataclass
class Comparison:
    """The outcome of a comparison: what was compared, and the first difference."""

    steps: int
    tensors: int = 0
    difference: Difference | None = None
    renamed: dict[str, str] = field(default_factory=dict)


def compare(old: Side, new: Side) -> Comparison:
    """Compare two trainings: data, each step, the rates, the logged lines and the last state."""
    renamed = renames(old, new)
    result = Comparison(min(old.end, new.end), renamed=renamed)
    found = _differences(old, new, renamed)
    result.difference = next(found, None)
    if old.end == new.end:
        result.tensors = len(StoredCheckpoint(new.last_checkpoint).names())
    return result


def _differences(old: Side, new: Side, renamed: Mapping[str, str]) -> Iterator[Difference]:
    """Yield differences, the first one first."""
    if (data := _data(old)) != (now := _data(new)):
        yield Difference(0, f"trains on other data: {now} instead of {data}")
    yield from step_differences(old, new, renamed)
    if old.end != new.end:
        yield Difference(new.end, f"ends at step {new.end} instead of {old.end}")
        return
    yield from _of_rates(old, new)
    lines = [lines_of(side.folder, 0, side.end) for side in (old, new)]
    for text in line_differences(lines[0], lines[1], ("the other code", "this code")):
        yield Difference(new.end, f"differs in metrics.jsonl, {text}; the steps are equal")
    back = {now: then for then, now in renamed.items()}
    for text in checkpoint_differences(old.last_checkpoint, new.last_checkpoint, back):
        yield Difference(new.end, f"differs in the state after step {new.end}, {text}")


def _of_rates(old: Side, new: Side) -> Iterator[Difference]:
    if old.rates is None or new.rates is None:
        return
    for number, (before, after) in enumerate(zip(old.rates, new.rates, strict=False)):
        if before != after:
            # The first rate of the list is of the step after the last.
            step = old.end + 1 + number
            text = f"differs from step {step}: learning rate ({_join(after)} instead of"
            yield Difference(step, f"{text} {_join(before)}); the steps before are equal")
    if len(old.rates) != len(new.rates):
        now, then = (new.end + len(new.rates), old.end + len(old.rates))
        yield Difference(min(now, then), f"has {now} steps instead of {then}")


def _join(rates: Sequence[float]) -> str:
    return ", ".join(map(repr, rates))


def step_differences(old: Side, new: Side, renamed: Mapping[str, str]) -> Iterator[Difference]:
    """Yield the differences between the steps that both sides have, the first one first."""
    for step in sorted({step for lines in old.steps.values() for step in lines}):
        for kind in CAUSES:
            for rank, lines in sorted(old.steps.items()):
                then = lines.get(step, {}).get(kind)
                now = new.steps.get(rank, {}).get(step, {}).get(kind)
                if then is None or now is None or then == now:
                    continue
                if kind not in BY_NAME:
                    yield Difference(step, kind, rank)
                elif names := _first_name(then, now, renamed):
                    yield Difference(step, kind, rank, names)


def _first_name(
    then: Mapping[str, Any], now: Mapping[str, Any], renamed: Mapping[str, str]
) -> tuple[str, str] | None:
    for name, value in then.items():
        current = renamed.get(name, name)
        if now.get(current) != value:
            return name, current
    extra = [name for name in now if name not in {renamed.get(old, old) for old in then}]
    return (extra[0], extra[0]) if extra else None


def renames(old: Side, new: Side) -> dict[str, str]:
    """Return the new names of parameters that have the order and initial bits of the old ones."""
    then, now = (side.steps[0].get(0, {}).get(WEIGHTS, {}) for side in (old, new))
    if list(then) == list(now) or list(then.values()) != list(now.values()):
        return {}
    pairs = zip(then, now, strict=True)
    return {before: after for before, after in pairs if before != after}


def modules_renamed(renamed: Mapping[str, str]) -> list[str]:
    """Return `old -> new` for the modules whose parameters have other names."""
    texts: dict[str, None] = {}
    for before, after in renamed.items():
        old, new = before.split("."), after.split(".")
        while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
            del old[-1], new[-1]
        texts[f"{'.'.join(old)} -> {'.'.join(new)}"] = None
    return list(texts)


def describe_values(old: Path, new: Path, difference: Difference) -> str:
    """Return how many values of a parameter differ, and the largest distance.

    Args:
        old: the folder of a trace that has kept the values of the difference's step.
        new: the folder of the other side.
        difference: of a gradient or an update.
    """
    if difference.names is None:
        return ""
    file = f"rank-{difference.rank}-{difference.kind}"
    tensors = [
        load_file(folder / file).get(name)
        for folder, name in zip((old, new), difference.names, strict=True)
    ]
    if any(tensor is None for tensor in tensors):
        return " (only one side has it)"
    then, now = (torch.as_tensor(tensor) for tensor in tensors)
    if then.shape != now.shape:
        return f" (shape {list(now.shape)} instead of {list(then.shape)})"
    unequal = int(((then != now) & ~(then.isnan() & now.isnan())).sum())
    wide = torch.complex128 if then.is_complex() else torch.float64
    distance = float((now.to(wide) - then.to(wide)).abs().max())
    return f" ({unequal} of {then.numel()} values, at most {distance:.2g})"


def _data(side: Side) -> object:
    """Return the fingerprint of the training data, or None if they have none."""
    state = StoredCheckpoint(side.last_checkpoint).meta["training_state"].get("data_loader")
    return state.get("dataset") if isinstance(state, Mapping) else None
