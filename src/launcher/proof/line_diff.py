"""Lines of metrics of two trainings, compared step by step."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from launcher.rundir.folder import RunFolder
from launcher.rundir.history import is_measured, read_rows

Lines = Mapping[float, Mapping[str, object]]
"""The line of each step: its values by name."""


class LineDifference(NamedTuple):
    """A value that differs at a step. Without a key, only one of the two has a line."""

    step: float
    key: str
    before: object
    after: object

    def __str__(self) -> str:
        if not self.key:
            return f"step {self.step}: only {self.before or self.after} has a line of metrics.jsonl"
        return f"step {self.step}: {self.key} {self.after!r} instead of {self.before!r}"


def lines_of(folder: RunFolder, start: int, end: int) -> dict[float, dict[str, object]]:
    """Return the newest line of each step after `start`, without times."""
    return {
        step: {k: v for k, v in row.items() if k != "attempt" and not is_measured(k)}
        for row in read_rows(folder.metrics_path)
        if isinstance(step := row.get("step"), int) and (start < step <= end or start == step == 0)
    }


def line_differences(
    before: Lines, after: Lines, names: tuple[str, str] = ("the first", "the second")
) -> Iterator[LineDifference]:
    """Yield the differences by step. Two NaN are equal, and 0.0 is not equal to -0.0."""
    for step in sorted({*before, *after}):
        if step not in after:
            yield LineDifference(step, "", names[0], None)
        elif step not in before:
            yield LineDifference(step, "", None, names[1])
        else:
            for key in {**before[step], **after[step]}:
                old, new = before[step].get(key), after[step].get(key)
                if repr(old) != repr(new):
                    yield LineDifference(step, key, old, new)
