import errno
import json
import os
import sys
import time
from pathlib import Path

import pytest

from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.rundir.provenance import git_state
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import AttemptData, RecordData, iso, read_record
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.runs.stored_run import StoredRun
from launcher.runs.trials import Goal, Trial
from support.crash import killed
from support.git import commit, git
from support.stores import CheckpointStore, save


class Clock:
    def __init__(self, now=1_800_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "gpt-text" / "1a2b3c4d").create()


def open_record(folder, clock, **options):
    return RunRecord(folder, clock=clock, **{"timer": clock, **options})


def begin(record, step=0):
    return record.begin_attempt(start_step=step, max_steps=100, world_size=1, strategy="none")


def on_disk(folder):
    return json.loads(folder.record_path.read_text())


def test_git_is_not_asked_again_for_the_state_of_the_code(folder, clock, monkeypatch):
    asked = []
    monkeypatch.setattr("launcher.rundir.provenance.own_state", lambda: asked.append("git"))
    monkeypatch.setattr("launcher.rundir.provenance.other_repositories", lambda files: [])
    state = {"commit": "a1b2", "dirty": True}
    start = {"start_step": 0, "max_steps": 9, "world_size": 1, "strategy": "none"}
    open_record(folder, clock).begin_attempt(**start, code={"git": state, "versions": {}})
    assert on_disk(folder)["git"] == state and not asked
    open_record(folder, clock).begin_attempt(**start)
    assert on_disk(folder)["git"] is None and asked == ["git"]


def test_a_whole_life(folder, clock, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    record = open_record(folder, clock)
    assert record.state is None and not folder.record_path.exists()
    assert begin(record) == 1
    clock.now += 60
    record.end_attempt("preempted", end_step=40, signal="SIGTERM", exit_code=143)
    record = open_record(folder, clock)
    assert begin(record, 40) == 2
    log(folder, (50, 2.5), (100, 1.5))
    record.end_attempt("completed", end_step=100, exit_code=0, best=best(1.4, 90))

    data = on_disk(folder)
    assert data.keys() == RecordData.__annotations__.keys()
    assert data["versions"]["python"] == sys.version.split()[0]
    assert data["git"] == git_state(Path.cwd())
    known = {"id": "1a2b3c4d", "name": "gpt-text", "state": "completed", "step": 100, "loss": 1.5}
    known |= {"best": best(1.4, 90), "max_steps": 100, "folder": str(folder.path)}
    known["logged"] = {"curve": "█▁", "newest": {"train/loss": [1.5, 100]}}
    assert data | known == data
    first, second = data["attempts"]
    assert first.keys() == AttemptData.__annotations__.keys()
    ends = {"started": "2027-01-15T08:00:00+00:00", "ended": "2027-01-15T08:01:00+00:00"}
    ends |= {"start_step": 0, "end_step": 40, "signal": "SIGTERM", "exit_code": 143}
    assert first | ends | {"slurm_job_id": "77", "pid": os.getpid()} == first
    assert (first["outcome"], second["outcome"]) == ("preempted", "completed")


def best(value, step):
    return {"metric": "val/loss", "value": value, "step": step}


@pytest.mark.parametrize(("saved", "end"), [(30, 37), (40, 40)])
def test_an_attempt_that_never_ended_was_killed(folder, clock, saved, end):
    """Its last write may be older than its newest checkpoint."""
    record = open_record(folder, clock)
    begin(record)
    record.progress(37, force=True)
    save(CheckpointStore(folder.checkpoints), saved)
    os.utime(folder.record_path, (clock.now + 5, clock.now + 5))
    record = open_record(folder, clock)
    assert record.state == "running" and record.attempt["outcome"] is None
    assert begin(record, 30) == 2
    killed, running = on_disk(folder)["attempts"]
    assert (killed["outcome"], killed["end_step"]) == ("killed", end)
    assert killed["ended"] == "2027-01-15T08:00:05+00:00"
    assert running["outcome"] is None and running["start_step"] == 30
    assert on_disk(folder)["state"] == "running" and on_disk(folder)["step"] == 30


@pytest.mark.parametrize("jump", [-7200, -(10**9), 0, 10**7])
def test_a_clock_that_is_set_gives_no_other_duration(folder, clock, jump):
    timer = Clock(5.0)
    record = open_record(folder, clock, timer=timer)
    begin(record)
    clock.now += jump
    timer.now += 90
    record.end_attempt("preempted", end_step=40)
    assert on_disk(folder)["attempts"][0]["ended"] == "2027-01-15T08:01:30+00:00"


@pytest.mark.parametrize("failures", [1, 3, 9])
def test_the_last_write_is_tried_again(folder, clock, failures, monkeypatch):
    record = open_record(folder, clock)
    begin(record)
    left = iter([OSError(errno.EIO, "I/O error")] * failures)

    def replace(source, target, real=os.replace):
        if (error := next(left, None)) is not None:
            raise error
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    if failures < 9:
        record.end_attempt("completed", end_step=100)
    else:
        with pytest.raises(OSError, match="I/O error"):
            record.end_attempt("completed", end_step=100)
    assert on_disk(folder)["state"] == ("completed" if failures < 9 else "running")


def test_progress_is_written_once_an_interval_and_at_first_sooner(folder, clock):
    record = open_record(folder, clock, interval=10)
    begin(record)
    written = []
    for step in range(1, 31):
        clock.now += 1
        if record.progress(step, loss=float(step)):
            written.append(step)
            assert (on_disk(folder)["step"], on_disk(folder)["loss"]) == (step, float(step))
    assert written == [1, 2, 4, 8, 16, 26]
    assert record.progress(31) is False and record.step == 31
    assert record.progress(32, force=True) is True and on_disk(folder)["step"] == 32
    clock.now -= 3600  # a clock set back does not silence a run
    assert record.progress(33) is True


def test_never_completed_for_what_is_not(folder, clock):
    record = open_record(folder, clock)
    begin(record)
    for end in ({"end_step": 99}, {"signal": "SIGTERM"}, {"exit_code": 1}):
        with pytest.raises(ValueError, match="not completed"):
            record.end_attempt("completed", **{"end_step": 100, **end})
    assert on_disk(folder)["state"] == "running"


def test_state_follows_the_outcome(folder, clock):
    for outcome, state in (("completed", "completed"), ("killed", "failed"), ("paused", "paused")):
        record = open_record(folder, clock)
        begin(record)
        record.end_attempt(outcome, end_step=3, reason="early stopping: val/loss")
        assert on_disk(folder)["state"] == state
        with pytest.raises(ValueError, match="no attempt is open"):
            record.end_attempt("failed", end_step=3)


def test_rolling_back_forgets_what_came_after(folder, clock):
    record = open_record(folder, clock)
    begin(record)
    log(folder, (10, 4.0), (30, "nan"), (50, 2.0))
    record.end_attempt("preempted", end_step=50, best=best(0.9, 30))
    assert on_disk(folder)["loss"] == 2.0
    begin(record, 40)
    assert on_disk(folder)["loss"] == "nan" and on_disk(folder)["best"] == best(0.9, 30)
    assert on_disk(folder)["logged"] is None
    begin(record, 20)
    assert on_disk(folder)["loss"] == 4.0 and on_disk(folder)["best"] is None
    begin(record, 5)
    assert on_disk(folder)["loss"] is None


def log(folder, *lines):
    text = "".join(json.dumps({"step": step, "train/loss": loss}) + "\n" for step, loss in lines)
    folder.metrics_path.write_text(text)


DAMAGED = {
    "empty": b"",
    "cut off": b'{"id": ',
    "binary": b"\xff\xfe",
    "a list": b"[]",
    "nested too deeply": b"[" * 100_000,
    "an unknown state": b'{"state": "going well"}',
    "a folder": None,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_record_is_set_aside_and_rebuilt_from_the_checkpoints(
    folder, clock, content, caplog
):
    if content is None:
        folder.record_path.mkdir()
    else:
        folder.record_path.write_bytes(content)
    for name in ("step-00000020", "step-00000030", "corrupt-step-00000040"):
        (folder.checkpoints / name).mkdir(parents=True)
        if name != "step-00000030":  # it is not committed
            (folder.checkpoints / name / "manifest.json").touch()
    record = open_record(folder, clock)
    assert (record.step, record.state) == (20, None)
    assert not folder.path.joinpath("run.json.damaged").exists(), "a reader writes nothing"
    assert begin(record, record.step) == 1
    aside = folder.path / "run.json.damaged"
    assert aside.is_dir() if content is None else aside.read_bytes() == content
    assert "damaged" in caplog.text
    assert read_record(folder.record_path)["step"] == 20


def test_a_key_of_a_later_version_is_kept(folder, clock):
    begin(open_record(folder, clock))
    folder.record_path.write_text(json.dumps({**on_disk(folder), "mood": "good"}))
    begin(open_record(folder, clock))
    assert on_disk(folder)["mood"] == "good"


def test_training_continues_if_progress_cannot_be_written(folder, clock, caplog):
    record = open_record(folder, clock, interval=1)
    begin(record)
    (folder.path / ".run.json.tmp").mkdir()  # a failing write, even for root
    clock.now += 2
    assert record.progress(5) is False and "could not be written" in caplog.text
    assert on_disk(folder)["step"] == 0
    (folder.path / ".run.json.tmp").rmdir()
    clock.now += 2
    assert record.progress(6) is True


def test_a_record_is_valid_after_a_kill_in_a_write(folder, clock):
    record, steps = open_record(folder, clock), []
    begin(record)
    while killed(lambda: record.progress(7, force=True) and None, len(steps) + 1)[0]:
        steps.append(read_record(folder.record_path)["step"])
    assert len(steps) > 2 and set(steps) <= {0, 7}
    assert read_record(folder.record_path)["step"] == 7


def test_git_state(tmp_path, monkeypatch):
    for variable in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    code = tmp_path / "code"
    code.mkdir()
    assert git_state(code) is None

    git(code, "init")
    assert git_state(code) is None  # no commit yet
    (code / "a.py").write_text("1")
    commit(code)
    (code / "untracked.txt").write_text("1")
    newest = git(code, "rev-parse", "HEAD").decode().strip()
    assert git_state(code) == {"commit": newest, "dirty": False}
    (code / "a.py").write_text("2")
    assert git_state(code)["dirty"] is True
    assert git_state(tmp_path / "nowhere") is None
    monkeypatch.setenv("PATH", "")
    assert git_state(code) is None


def test_an_attempt_has_waited_since_its_submission_or_the_requeue(folder, clock, monkeypatch):
    open_record(folder, clock).queue()
    submitted = iso(clock.now)
    clock.now += 500
    requeued = iso(clock.now + 60)
    for job, queued in (("77", submitted), ("77", requeued), ("78", submitted), (None, None)):
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        if job is not None:
            monkeypatch.setenv("SLURM_JOB_ID", job)
        record = open_record(folder, clock)
        record.begin_attempt(
            start_step=0, max_steps=100, world_size=1, strategy="none", launched=clock.now - 5
        )
        record.note_times({"starting": 1.23456})
        clock.now += 60
        record.end_attempt("preempted", end_step=0)
        newest = on_disk(folder)["attempts"][-1]
        assert (newest["queued"], newest["seconds"]) == (queued, {"starting": 1.235})
        assert newest["launched"] < newest["started"]


@pytest.mark.parametrize("version", [0, 99])
def test_a_record_of_another_format_is_rejected_and_stays(version, tmp_path):
    folder = RunFolder(tmp_path / "gpt" / "1a2b").create()
    folder.record_path.write_text(f'{{"format_version": {version}, "state": "resting"}}')
    for read in (RunRecord, RunOnDisk.load):
        with pytest.raises(ConfigError, match=f"by another version of .*_version {version}, and"):
            read(folder)
    found = StoredRun.read(folder.path)
    assert (found.record, found.state) == ({}, "unsupported")
    assert json.loads(folder.record_path.read_text())["state"] == "resting"


def test_trials_are_noted_and_stay(folder, clock):
    """By their study and number, also while an attempt is open."""
    goal = Goal("val/loss", "minimize")
    trial = Trial(goal, 3, {"x": 0.5}, target=10).as_data("toy-1")
    command = {"overrides": ["x=0.5"], "identity": {"x": 0.5}, "identity_id": "ab"}
    open_record(folder, clock).note_trial(trial, command)
    data = on_disk(folder)
    assert (data["state"], data["overrides"], data["identity"]) == (None, ["x=0.5"], {"x": 0.5})
    record = open_record(folder, clock)
    begin(record)
    record.end_attempt("preempted", end_step=40)
    open_record(folder, clock).note_trial(trial | {"target": 20}, {"overrides": ["no"]})
    open_record(folder, clock).note_trial(trial | {"study": "toy-2"}, {})
    data = on_disk(folder)
    targets = {one["study"]: one["target"] for one in data["trials"]}
    assert targets == {"toy-1": 20, "toy-2": 10}
    assert (data["state"], data["overrides"]) == ("preempted", ["x=0.5"])
