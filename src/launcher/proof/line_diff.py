"""Lines of metrics of two trainings, compared step by step."""

from collections.abc import Iterator, Mapping

from launcher.rundir.folder import RunFolder
from launcher.rundir.history import is_measured, read_rows

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
            yield f"step {step}: only {names[step in after]} has a line of metrics.jsonl"
            continue
        for key in {**before[step], **after[step]}:
            old, new = before[step].get(key), after[step].get(key)
            if repr(old) != repr(new):
                yield f"step {step}: {key} {new!r} instead of {old!r}"
