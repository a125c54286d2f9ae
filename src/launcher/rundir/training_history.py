"""The settings that have trained the steps of a run, which its newest configuration may not have.

A run may be trained further with another configuration or other code. So each attempt records its
settings, as the difference from the attempt before: the identity stays the first command's, and
`runs adopt` replaces it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from launcher.rundir.record_format import AttemptData, TrainedData

Settings = dict[str, Any]
"""The nodes of an identity, with the hooks and the length."""


def difference(before: Settings, now: Settings) -> TrainedData:
    """Return the nodes of settings that differ from the ones of the attempt before."""
    return {
        "settings": {k: value for k, value in now.items() if k not in before or before[k] != value},
        "gone": [key for key in before if key not in now],
    }


def settings_of(attempts: Iterable[AttemptData]) -> list[Settings | None]:
    """Return the settings of each attempt, or None if it has not recorded them.

    Equal settings of attempts that follow each other are one object.
    """
    current: Settings = {}
    result: list[Settings | None] = []
    for attempt in attempts:
        trained = attempt.get("trained")
        if trained is None:
            result.append(None)
            continue
        changed = trained.get("settings") or {}
        gone = trained.get("gone") or []
        if changed or gone:
            current = {key: value for key, value in current.items() if key not in gone} | changed
        result.append(current)
    return result


def distinct_settings(attempts: Sequence[AttemptData]) -> list[Settings]:
    """Return the recorded settings of the attempts that have trained, without repetitions."""
    all_settings = zip(attempts, settings_of(attempts), strict=True)
    trained = [settings for attempt, settings in all_settings if settings and has_trained(attempt)]
    return list({id(settings): settings for settings in trained}.values())


def newest_settings(attempts: Sequence[AttemptData]) -> Settings:
    """Return the settings of the newest attempt that has recorded them; empty if there is none."""
    known = [settings for settings in settings_of(attempts) if settings is not None]
    return known[-1] if known else {}


def has_trained(attempt: AttemptData) -> bool:
    """Return whether an attempt may have trained a step. An open one may."""
    return attempt.get("end_step") != attempt.get("start_step")


def kept_attempts(attempts: Sequence[AttemptData]) -> list[AttemptData]:
    """Return the attempts with steps that no later attempt has trained again."""
    kept = list[AttemptData]()
    for attempt in attempts:
        if has_trained(attempt):
            kept = [*(each for each in kept if step_before(each) < step_before(attempt)), attempt]
    return kept


def step_before(attempt: AttemptData) -> int:
    """Return the step that an attempt started from."""
    return attempt.get("start_step") or 0


def changes_of(attempt: AttemptData) -> list[str]:
    """Return what has changed since the checkpoint before, but for the configuration."""
    return (attempt.get("trained") or {}).get("changes") or []


def changes_of_code(attempt: AttemptData) -> list[str]:
    """Return the changes without the commit, since another commit may have the same code."""
    return [change for change in changes_of(attempt) if not change.startswith("git.")]


def describe_changes(attempts: Sequence[AttemptData]) -> str:
    """Format the changes between the steps of a run, but for its configuration, or return ""."""
    kept = kept_attempts(attempts)
    texts = [(step_before(attempt), "; ".join(changes_of(attempt))) for attempt in kept]
    return "; ".join(f"after step {step}: {text}" for step, text in texts if text)


def forget_settings(attempts: Iterable[AttemptData]) -> None:
    """Drop what a listing of thousands of runs does not need."""
    for attempt in attempts:
        attempt.pop("trained", None)
