"""Settings that trained the steps of a run, as each attempt records them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import read_record
from launcher.rundir.training_history import (
    describe_changes,
    difference,
    kept_attempts,
    newest_settings,
    settings_of,
)

NODES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([1, {"x": [2]}, None, "a.b"]))


@given(st.lists(st.one_of(st.none(), NODES), max_size=6))
def test_the_settings_of_each_attempt_are_read_as_they_were(all_settings):
    """An attempt of an earlier version has recorded none."""
    attempts: list[Any] = []
    for settings in all_settings:
        changed = None if settings is None else difference(newest_settings(attempts), settings)
        attempts.append({"trained": changed})
    assert settings_of(attempts) == all_settings
    known = [settings for settings in all_settings if settings is not None]
    assert newest_settings(attempts) == (known[-1] if known else {})


def test_a_record_has_only_what_has_changed(tmp_path):
    folder = RunFolder(tmp_path / "name" / "id")
    folder.path.mkdir(parents=True)
    before = {"optimizer": {"lr": 0.1}, "hooks": {"a": {"interval": 1}}, "seed": 0}
    for settings in (before, before, {**before, "optimizer": {"lr": 0.2}}):
        record = RunRecord(folder)
        trained: Any = {"changes": [], "weights": None}
        record.begin_attempt(
            start_step=record.step,
            max_steps=9,
            world_size=1,
            strategy="none",
            settings=settings,
            trained=trained,
        )
        record.end_attempt("preempted", end_step=record.step + 1)
    attempts = read_record(folder.record_path)["attempts"]
    recorded: list[Any] = [attempt["trained"] for attempt in attempts]
    assert [each["settings"] for each in recorded] == [before, {}, {"optimizer": {"lr": 0.2}}]
    record.name_by({"optimizer": {"lr": 0.3}}, "id")
    assert settings_of(read_record(folder.record_path)["attempts"])[0] == before


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6))
def test_each_kept_step_is_of_the_last_attempt_that_trained_it(spans):
    """An attempt may start at any step up to the newest: a rollback, or a damaged checkpoint."""
    attempts: list[Any] = []
    trained: dict[int, int] = {}
    for number, (start, count) in enumerate(spans):
        start = min(start, max(trained, default=0))
        attempts.append({"number": number, "start_step": start, "end_step": start + count})
        if count:
            trained = {step: by for step, by in trained.items() if step <= start}
        trained |= dict.fromkeys(range(start + 1, start + count + 1), number)
    kept = [attempt["number"] for attempt in kept_attempts(attempts)]
    assert kept == sorted({*trained.values()})


def test_changes_of_steps_that_are_not_kept_do_not_count():
    def attempt(start: int, end: int, *changes: str) -> Any:
        trained = {"changes": [*changes]}
        return {"start_step": start, "end_step": end, "trained": trained}

    first = attempt(0, 6)
    edited = attempt(6, 9, "git.commit: a -> b", "net.py: was edited.")
    told = "after step 6: git.commit: a -> b; net.py: was edited."
    assert describe_changes([first, edited, attempt(9, 12)]) == told
    assert describe_changes([first, attempt(6, 6, "x.py: was edited."), attempt(6, 12)]) == ""
    assert describe_changes([first, edited, attempt(3, 12)]) == ""
    assert describe_changes([{"start_step": 0, "end_step": 5}]) == ""
