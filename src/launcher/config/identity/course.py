"""The values with which the steps of a run were trained, where its identity does not tell them."""

from collections.abc import Collection, Iterator

from launcher.config.identity.difference import ABSENT, Differences, diff
from launcher.config.identity.equivalence import canonical
from launcher.config.messages import to_override_text
from launcher.config.schema.run_length import with_steps
from launcher.config.tree import get
from launcher.rundir.record_format import RecordData
from launcher.rundir.training_history import Settings, kept_attempts, settings_of, step_before

Course = list[tuple[int, object]]
"""Values of a key, each with the step before its first one."""


def courses(record: RecordData, ignored: Collection[str]) -> dict[str, Course]:
    """Return the values of each key that a run was trained with, in their order.

    Left out are keys that have had the value of the identity in all steps, and those in `ignored`.
    """
    stretches = list(_stretches(record))
    if not stretches:
        return {}
    named = record.get("identity") or {}
    if get(named, "trainer.max_steps") is None and named:
        # Steps that follow from the data are not in the identity.
        named = with_steps(named, get(stretches[-1][1], "trainer.max_steps"))
    # Hooks are not part of the identity.
    trees = [{**named, "hooks": stretches[-1][1].get("hooks")}, *(tree for _, tree in stretches)]
    differing = diff(*map(canonical, trees), ignored={*ignored, "hooks"})
    return {
        key: list(_course([start for start, _ in stretches], values[1:]))
        for key, values in differing.items()
    }


def _stretches(record: RecordData) -> Iterator[tuple[int, Settings]]:
    """Yield the settings of the attempts whose steps are kept, with the step before the first."""
    attempts = record.get("attempts", [])
    kept = kept_attempts(attempts)
    for attempt, settings in zip(attempts, settings_of(attempts), strict=True):
        if settings is not None and any(attempt is each for each in kept):
            yield step_before(attempt), settings


def changes_between(
    record: RecordData, start: int, end: int, ignored: Collection[str]
) -> Differences:
    """Return the keys whose values have changed between two steps of a run."""
    stretches = list(_stretches(record))
    ends = [*(first for first, _ in stretches[1:]), end][: len(stretches)]
    trees = [
        settings
        for (first, settings), last in zip(stretches, ends, strict=True)
        if first < end and last > start
    ]
    if trees:
        return diff(*map(canonical, trees), ignored={*ignored, "hooks"})
    return {}


def _course(starts: list[int], values: list[object]) -> Iterator[tuple[int, object]]:
    before: object = _course
    for start, value in zip(starts, values, strict=True):
        if value != before:
            yield start, value
        before = value


def describe_course(course: Course) -> str:
    """Format the values of a key: `0.1 to step 10, then 0.2`."""
    texts = ["the default" if value is ABSENT else to_override_text(value) for _, value in course]
    ends = [f" to step {start}" for start, _ in course[1:]]
    return ", then ".join(text + end for text, end in zip(texts, [*ends, ""], strict=True))


def describe_courses(record: RecordData, ignored: Collection[str]) -> str:
    """Format how a run was trained, or return "" if its identity tells it."""
    found = courses(record, ignored)
    return "; ".join(f"{key}={describe_course(course)}" for key, course in found.items())
