"""The first difference between two trainings of the same steps, and what is equal before it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.proof.side import Place, Side

OF_A_STEP = ("random state", "samples", "loss", "gradients", "weights")
"""Kinds of values in the order in which a step reads and computes them."""
KINDS = ("data", *OF_A_STEP, "end", "learning rate", "metrics", "tensor", "state")
"""All kinds in the order of the comparison. The steps come before all kinds behind them."""
BY_PARAMETER = {"gradients": "gradient", "weights": "update"}


@dataclass(frozen=True)
class Difference:
    """The first value that differs.

    Args:
        place: its place in the new training.
        then: its value in the old training, None if it has none.
        now: its value in the new one.
        old_name: the name of its parameter in the old one.
    """

    place: Place
    then: object
    now: object
    old_name: str = ""

    def describe(self, size: str = "") -> str:
        """Return the first difference, and what is equal until then."""
        step, kind, rank, name = self.place
        instead = f"{self.now} instead of {self.then}"
        if kind in OF_A_STEP:
            return self._of_a_step(size, f" on rank {rank}" if rank else "")
        return {
            "data": f"trains on other data: {instead}",
            "end": f"ends at step {instead}",
            "learning rate": f"differs from step {step}: learning rate ({instead}); the steps"
            " before are equal",
            "metrics": f"differs in metrics.jsonl, step {step}: {name} {instead}; the steps are"
            " equal",
        }.get(kind, f"differs in the state after step {step}: {name} ({instead})")

    def _of_a_step(self, size: str, rank: str) -> str:
        step, kind, _, name = self.place
        if step == 0:
            return f"differs before the first step: initial weights of {name}{size}{rank}"
        what = f"{BY_PARAMETER[kind]} of {name}" if name else kind
        text = f"differs from step {step}: {what}{size}{rank}"
        before = OF_A_STEP[: OF_A_STEP.index(kind)][-2:]
        if len(before) > 1:
            return f"{text}; {' and '.join(before)} are equal until then"
        return text


def first_difference(old: Side, new: Side) -> Difference | None:
    """Compare two trainings: data, each step, the rates, the logged lines and the last state."""
    renamed = renames(old, new)
    words = renamed | {repr(then): repr(now) for then, now in renamed.items()}
    names = {_renamed(place, renamed): place.name for place in old.values}
    before = {
        _renamed(place, renamed): words.get(value, value) if place.kind == "state" else value
        for place, value in old.values.items()
    }
    end = min(old.end, new.end)
    for place in sorted({**before, **new.values}, key=_order):
        then = before.get(place)
        now = new.values.get(place)
        # The end itself is compared after the steps that both have.
        if then != now and not (place.kind in OF_A_STEP and place.step > end):
            return Difference(place, then, now, names.get(place, place.name))
    return None


def _order(place: Place) -> tuple[int, int, int, int]:
    kind = KINDS.index(place.kind)
    phase = KINDS.index(OF_A_STEP[0]) if place.kind in OF_A_STEP else kind
    return phase, place.step, kind, place.rank


def _renamed(place: Place, renamed: Mapping[str, str]) -> Place:
    parts = place.name.split("/")
    return place._replace(name="/".join(renamed.get(part, part) for part in parts))


def renames(old: Side, new: Side) -> dict[str, str]:
    """Return the new names of parameters that have the order and initial bits of the old ones."""
    then, now = (
        {
            place.name: value
            for place, value in side.values.items()
            if place[:3] == (0, "weights", 0)
        }
        for side in (old, new)
    )
    if list(then) == list(now) or list(then.values()) != list(now.values()):
        return {}
    pairs = zip(then, now, strict=True)
    return {before: after for before, after in pairs if before != after}


def modules_renamed(renamed: Mapping[str, str]) -> list[str]:
    """Return `old -> new` for the modules whose parameters have other names."""
    texts: dict[str, None] = {}
    for before, after in renamed.items():
        old = before.split(".")
        new = after.split(".")
        while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
            del old[-1], new[-1]
        texts[f"{'.'.join(old)} -> {'.'.join(new)}"] = None
    return list(texts)


def size_of(difference: Difference, old: Path, new: Path) -> str:
    """Return how many values of a parameter differ, and the largest distance.

    Args:
        difference: of a gradient or an update.
        old: the folder of a trace that has kept the values of the difference's step.
        new: the folder of the other side.
    """
    import torch
    from safetensors.torch import load_file

    _, kind, rank, name = difference.place
    file = f"rank-{rank}-{kind}"
    then = load_file(old / file).get(difference.old_name)
    now = load_file(new / file).get(name)
    if then is None or now is None:
        return " (only one side has it)"
    if then.shape != now.shape:
        return f" (shape {list(now.shape)} instead of {list(then.shape)})"
    unequal = int(((then != now) & ~(then.isnan() & now.isnan())).sum())
    distance = float((now.to(torch.complex128) - then.to(torch.complex128)).abs().max())
    return f" ({unequal} of {then.numel()} values, at most {distance:.2g})"
