"""Lines of steps, in `metrics.jsonl` and `media.jsonl`: drop or keep the lines after a step."""

import json
import logging
import os
from itertools import groupby
from pathlib import Path

from launcher.process.files import (
    find_unused_name,
    name_abandoned,
    open_file,
    read_file,
    replace_file,
)

logger = logging.getLogger("launcher")

START = b'{"step":'
"""Pattern of the beginning of a line."""


def drop_lines_after(path: Path, step: int, once: bool = True) -> int:
    """Keep the lines up to `step` in the order of their steps, and return their number.

    If the file has lines that are corrupt, repeated or out of order, a copy of it is kept under
    another name. A truncated last line is dropped silently. With `once`, the first of several lines
    of a step is kept.
    """
    try:
        count = _count_of_whole_lines(path, step, once)
        if count is not None:
            return count
        content = read_file(path)
    except FileNotFoundError:
        return 0
    except IsADirectoryError:
        os.rename(path, aside := find_unused_name(path))
        logger.error("%s is a folder: renamed to %s.", path, aside.name)
        return 0
    lines = content.splitlines(keepends=True)
    steps = [step_of(line) for line in lines]
    matched = zip(steps, lines, strict=True)
    pairs = [(number, line) for number, line in matched if number is not None]
    in_order = sorted(pairs, key=_step)
    if once:
        in_order = [next(of_a_step) for _, of_a_step in groupby(in_order, key=_step)]
    # The last line may have been cut off by a kill.
    whole = steps[:-1] if lines and lines[-1].startswith(b"{") else steps
    if None in whole:
        _keep_copy(path, content, "lines that cannot be read")
    if in_order != pairs:
        _keep_copy(path, content, "lines twice or out of order")
    new_lines = [line for number, line in in_order if number <= step]
    if new_lines != lines:
        replace_file(path, b"".join(new_lines))
    return len(new_lines)


def _step(pair: tuple[float, bytes]) -> float:
    return pair[0]


def _keep_copy(path: Path, content: bytes, problem: str) -> None:
    replace_file(aside := find_unused_name(path), content)
    logger.error("%s has %s: it is kept as %s.", path, problem, aside.name)


def _count_of_whole_lines(path: Path, step: int, once: bool) -> int | None:
    """Return the number of lines if nothing has to be changed, else None.

    Each line looks complete, their steps increase, and the last one is not after `step`. To parse
    10^6 lines would take seconds, and a gigabyte.
    """
    count = 0
    last = -1
    with open_file(path) as file:
        for line in file:
            number = line[len(START) : line.find(b",")]
            if not (line.startswith(START) and line.endswith(b"}\n") and number.isdigit()):
                return None
            if not (last < int(number) or (last == int(number) and not once)):
                return None
            count += 1
            last = int(number)
    return count if last <= step else None


def set_lines_aside(path: Path, step: int) -> int:
    """Move the lines after `step` to a new file `abandoned-<name>`, and return their number."""
    try:
        lines = read_file(path).splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    later = [line for line in lines if (step_of(line) or 0) > step]
    if later:
        replace_file(name_abandoned(path), b"".join(later))
        replace_file(path, b"".join(line for line in lines if (step_of(line) or 0) <= step))
    return len(later)


def step_of(line: bytes) -> float | None:
    """Return the step of a line, or None if the line is not complete."""
    try:
        step = json.loads(line)["step"] if line.endswith(b"\n") else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if isinstance(step, (int, float)) else None
