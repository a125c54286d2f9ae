"""The agreement of presets with each other, such as strategies or sizes of micro-batches."""

from collections.abc import Sequence

from launcher.proof.diff import line_differences, lines_of, tensor_differences
from launcher.proof.guard_file import EqualPresets
from launcher.proof.side import Side

LOSS = "train/loss"


def disagreement(equal: EqualPresets, sides: Sequence[Side]) -> str | None:
    """Return how the first of the trainings and another one disagree, or None if all agree."""
    first, first_name = sides[0], equal.names[0]
    for side, name in zip(sides[1:], equal.names[1:], strict=True):
        text = _bits(first, side) if equal.close is None else _losses(first, side, equal.close)
        if text is not None:
            return f"{name} and {first_name} differ: {text}."
    return None


def _bits(one: Side, other: Side) -> str | None:
    """Compare logged lines, weights and moments; random states are of each rank."""
    lines = [lines_of(side.folder, 0, side.end) for side in (one, other)]
    for text in line_differences(lines[0], lines[1], ("the first", "the second")):
        return text
    for name, text in tensor_differences(one.last_checkpoint, other.last_checkpoint):
        return f"{name}: {text}"
    return None


def _losses(one: Side, other: Side, close: float) -> str | None:
    """Compare the logged losses of training, whose relative difference may be `close`."""
    here, there = (lines_of(side.folder, 0, side.end) for side in (one, other))
    for step, line in sorted(here.items()):
        values = [lines.get(LOSS) for lines in (line, there.get(step, {}))]
        if not all(isinstance(value, float) for value in values):
            continue
        loss, loss_there = (float(str(value)) for value in values)
        if not abs(loss - loss_there) <= close * abs(loss):
            return f"step {step}: {LOSS} {loss_there!r} and {loss!r}"
    return None
