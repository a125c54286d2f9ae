"""Compare two copies of a training whose steps were traced.

The comparison names the state that a resume forgot.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.checkpoint.difference import differences
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.rundir.copied import line_differences, lines_of
from launcher.rundir.folder import RunFolder, checkpoint_steps, step_name

RANDOM, SAMPLES, LOSS, GRADIENTS, WEIGHTS = (
    "random state",
    "samples",
    "loss",
    "gradients",
    "weights",
)
PARTS = "parts"
EVENTS = (RANDOM, SAMPLES, LOSS, GRADIENTS, WEIGHTS)
"""The values that a step reads and computes, in this order."""
SHOWN = 3
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
"""The reason why the first difference of a trace is a difference."""


class Traced:
    """A training whose steps are traced.

    Args:
        folder: its run folder.
        trace: the folder of its `TraceHook`.
    """

    def __init__(self, folder: RunFolder, trace: Path):
        self.folder, self.trace = folder, trace

    def newest(self) -> int:
        """The step of the newest checkpoint; 0 without one."""
        return max(checkpoint_steps(self.folder.checkpoints), default=0)

    def lines(self, end: int) -> dict[int, dict[str, Any]]:
        return lines_of(self.folder, 0, end)


class Comparison:
    """The differences between two copies.

    Args:
        straight: the copy without a stop.
        stopped: the copy that was stopped and resumed.
        at: the step from which it was resumed.
    """

    def __init__(self, straight: Traced, stopped: Traced, at: int):
        self.at, self.tensors = at, 0
        ends, names = (
            [straight.newest(), stopped.newest()],
            ("the straight training", "the resumed training"),
        )
        lines = line_differences(straight.lines(max(ends)), stopped.lines(max(ends)), names)
        self.states: list[str] = []
        if ends[0] == ends[1]:
            first, second = (
                copy.folder.checkpoints / step_name(ends[0]) for copy in (straight, stopped)
            )
            self.states = [f"checkpoint, {found}" for found in differences(first, second)]
            self.tensors = len(StoredCheckpoint(first).names())
        else:
            self.states = [f"the last checkpoint is step {ends[1]} instead of {ends[0]}"]
        self.differences = [*(f"metrics.jsonl, {line}" for line in lines), *self.states]
        self.before, self.after = read_trace(straight.trace), read_trace(stopped.trace)

    def report(self) -> Iterator[str]:
        """Lines: the causes, and what differs at the end."""
        yield from self.causes()
        yield from self.differences[:SHOWN]
        if len(self.differences) > SHOWN:
            yield f"and {len(self.differences) - SHOWN} more"

    def causes(self) -> Iterator[str]:
        """Lines: the first difference and its cause, and the state that was forgotten."""
        first = self.first()
        if first is None:
            return
        step, rank, event = first
        when = "after" if step > self.at else "before"
        yield (
            f"The first difference: the {event} of step {step} on rank {rank}, {when} the stop"
            f" at step {self.at}."
        )
        forgotten = self.forgotten() if step > self.at else []
        if step <= self.at:
            yield f"This training does not repeat even without a stop: {CAUSES[event]}."
        elif not forgotten:
            yield f"Not restored: {CAUSES[event]}."
        for text in forgotten:
            yield f"Not restored: {text}."

    def first(self) -> tuple[int, int, str] | None:
        """The step, rank and kind of the first difference in the traces."""
        for step in sorted({step for lines in self.before.values() for step in lines}):
            for event in EVENTS:
                for rank, lines in self.before.items():
                    pair = [
                        trace.get(step, {}).get(event)
                        for trace in (lines, self.after.get(rank, {}))
                    ]
                    if pair[0] != pair[1] and None not in pair:
                        return step, rank, event
        return None

    def forgotten(self) -> list[str]:
        """List the attributes of the user's parts with which the resumed process began wrongly."""
        found: dict[str, None] = {}
        for rank, lines in self.before.items():
            then = lines.get(self.at, {}).get(PARTS, {})
            now = self.after.get(rank, {}).get(self.at, {}).get(PARTS, {})
            found.update(dict.fromkeys(_changes(then, now)))
        return list(found)


def _changes(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name, value in then.items():
        if now.get(name) != value:
            yield f"{name} is {now.get(name, 'not set')} instead of {value}"


def read_trace(folder: Path) -> dict[int, dict[int, dict[str, Any]]]:
    """Read the lines of `TraceHook` by rank and step.

    A step with several lines has their union, the last one first.
    """
    ranks: dict[int, dict[int, dict[str, Any]]] = {}
    for file in sorted(folder.glob("rank-*.jsonl")):
        steps = ranks.setdefault(int(file.stem.partition("-")[2]), {})
        for text in file.read_text().splitlines():
            line = json.loads(text)
            steps[line["step"]] = steps.get(line["step"], {}) | line
    return ranks
