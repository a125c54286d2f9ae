"""Finds out why the replay of a segment differs from the run."""

import re
from collections.abc import Iterator, Sequence

from launcher.checkpoint.difference import differences
from launcher.checkpoint.traces import CAUSES, Comparison, Traced
from launcher.rundir.copied import lines_of
from launcher.rundir.folder import RunFolder, checkpoint_steps, step_name
from launcher.runs.replay_copy import Copier
from launcher.runs.stored_run import StoredRun

STEP = re.compile(r"step (\d+): ")
UNKNOWN = "something reads the clock, or an operation does not repeat"


class Causes:
    """Trains a segment twice more, and traces the steps.

    It trains once as the replay did, and once from the checkpoint before, so that the first step of
    the segment follows no resume.

    If the first training differs from the replay, nothing of it repeats. If the two differ, the
    resume has forgotten a state. If all three agree, the run itself is what differs.

    Args:
        copier: trains the copies.
        copy: the replay.
        start: of the segment.
        end: of the segment.
    """

    def __init__(self, copier: Copier, copy: RunFolder, start: int, end: int):
        self.copier, self.copy = copier, copy
        self.start, self.end = start, end

    def report(self, metrics: Sequence[str], states: Sequence[str]) -> Iterator[str]:
        """Describe the cause of a difference.

        Args:
            metrics: the differences between the lines of the run and the replay.
            states: the differences between their checkpoints.
        """
        run, start = self.copier.run, self.start
        steps = [int(match[1]) for text in metrics if (match := STEP.match(text))]
        until = min([*steps, self.end])
        before = max(
            [step for step in checkpoint_steps(run.folder.checkpoints) if step < start] or [0]
        )
        again = self._train("again", start, until)
        longer = self._train("longer", before, until)
        found = Comparison(longer, again, start)
        first = found.first()
        if not self._repeats(again.folder, until):
            cause = UNKNOWN if first is None else CAUSES[first[2]]
            at = "" if first is None else f", the first time in the {first[2]} of step {first[0]}"
            yield f"This training does not repeat: trained again, it differs{at}; {cause}."
        elif first is not None:
            yield from found.causes()
            if not found.forgotten():
                yield from self._changed(longer.folder, before)
        elif found.states:
            yield f"A resume from step {start} changes the state: {found.states[0]}."
        else:
            yield f"The replay repeats: trainings from steps {before} and {start} agree with it."
            yield from suspects(run, start, self.end, bool(metrics), bool(states))

    def _train(self, name: str, first: int, until: int) -> Traced:
        trace = self.copier.root / f"{name}-trace"
        folder = self.copier.train(name, first, until, trace=trace, keep=self.start)
        return Traced(folder, trace)

    def _repeats(self, again: RunFolder, until: int) -> bool:
        """Return whether another training of the same steps has the numbers of the replay."""
        lines, others = (lines_of(folder, self.start, until) for folder in (self.copy, again))
        # The last step has an evaluation that the replay, which trained further, may not have.
        is_same = all(
            others.get(step, {}).get(key) == value
            for step, line in lines.items()
            for key, value in line.items()
        )
        if until < self.end or not is_same:
            return is_same
        name = step_name(until)
        return not differences(self.copy.checkpoints / name, again.checkpoints / name)

    def _changed(self, longer: RunFolder, before: int) -> Iterator[str]:
        """Return a line if the steps before do not lead to the segment's first checkpoint."""
        name, run = step_name(self.start), self.copier.run
        if not (longer.checkpoints / name).is_dir():
            return
        for found in differences(longer.checkpoints / name, run.folder.checkpoints / name)[:1]:
            yield (
                f"Or the checkpoint of step {self.start} was changed: a training from step {before}"
                f" leads to other values; {found}."
            )


def suspects(run: StoredRun, start: int, end: int, metrics: bool, states: bool) -> Iterator[str]:
    """Name the parts of a run that may have changed, if its replay repeats.

    Args:
        run: the run.
        start: of the segment.
        end: of the segment.
        metrics: whether metrics.jsonl differs.
        states: whether the checkpoint differs.
    """
    if not states:
        yield f"metrics.jsonl was changed later: the checkpoint of step {end} is equal."
    elif not metrics:
        yield (
            f"The checkpoint of step {end} was changed later, with its manifest: metrics.jsonl is"
            " equal."
        )
    else:
        yield "The run was trained by other code or under other circumstances than it has recorded."
    resumed = [attempt.get("start_step") for attempt in run.attempts]
    for step in [step for step in resumed if isinstance(step, int) and start < step < end]:
        yield (
            f"Or its resume at step {step} forgot a state; job=resume_check with its configuration"
            " finds that."
        )
