"""Settings that trained the steps of a run, as each attempt records them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import read_record
from launcher.rundir.training_history import difference, newest_settings, settings_of

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
