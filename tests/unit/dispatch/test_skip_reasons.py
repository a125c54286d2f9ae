"""Jobs that are or are not submitted, by the state of their run, and the place of a job's
record."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.config.identity.record_entry import command_record
from launcher.config.options import own_option, own_target
from launcher.config.run_config import RunConfig, from_stored
from launcher.config.schema.declared import declared
from launcher.config.schema.run_length import with_steps
from launcher.dispatch.skip_reasons import folder_of, why_skipped
from launcher.errors import ConfigError
from launcher.jobs.train import TrainJob
from launcher.run_advice import is_done
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
from launcher.rundir.record import RunRecord
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.submission import Submission, freeze, read_frozen
from support.stores import CheckpointStore, save

OTHERS = {
    "evaluate": {"_target_": "launcher.jobs.evaluate.EvaluateJob", "checkpoint": "latest"},
    "check": {"_target_": "launcher.jobs.check.CheckJob"},
}
STATES = ("none", "queued", "running", "paused", "failed", "preempted", "cancelled", "completed")
DEFAULT = 500
"""Default of `trainer.max_steps`."""
EPOCHS = 400
"""Steps of an epoch."""
PARTITION = "dispatch.partition: null -> gpu"
QUEUE = {"7": QueuedJob("7", "PENDING", "Priority", "", "/s/job-0.sh")}
SAVING = {**own_option("hooks", "checkpointing")["checkpointing"], "load": "auto"}
ASKED: dict[str, dict[str, Any]] = {
    "the same": {},
    "more steps": {"max_steps": 30},
    "start over": {"resume": "never"},
    "must": {"resume": "must"},
}


class OwnTraining(TrainJob):
    pass


class OwnReport:
    def run(self, config: Any) -> None:
        pass


def asked(path: Path, job: str = "train", **changes: Any) -> dict[str, Any]:
    trainer = {key: changes.get(key) for key in ("pause_at", "max_epochs")}
    return {
        "run": {
            "name": "name",
            "id": "id",
            "dir": str(path),
            "resume": changes.get("resume", "auto"),
            "identity_exclude": [],
            "sweep": changes.get("sweep"),
        },
        "trainer": trainer | {"max_steps": changes.get("max_steps", 20)},
        "data": {"batch_size": 8},
        "model": {"sizes": [4, 4]},
        "hooks": {"checkpointing": SAVING} if changes.get("saves", 1) else {},
        "job": {"_target_": own_target("job", "train")} if job == "train" else OTHERS[job],
        "dispatch": {"partition": changes.get("partition")},
    }


def of(config: dict[str, Any]) -> RunConfig:
    return RunConfig(config, config)


def made(path: Path, state: str, steps: tuple[int, ...] = (10, 20), **changes: Any) -> RunFolder:
    """A run of two epochs in a state, with checkpoints at `steps` unless it has not begun."""
    folder, config = RunFolder(path), asked(path, **changes)
    if state == "none":
        return folder
    freeze(folder, config, None, Submission("/s/job-0.sh"))
    if state == "queued":
        return folder
    for step in steps:
        save(CheckpointStore(folder.checkpoints), step)
    record, last = RunRecord(folder), steps[-1]
    counted = config | {"trainer": config["trainer"] | {"max_epochs": 2, "max_steps": EPOCHS * 2}}
    command = command_record(counted if "max_epochs" in changes else config, None)
    max_steps = EPOCHS * 2 if "max_epochs" in changes else last
    record.begin_attempt(
        start_step=0, max_steps=max_steps, world_size=1, strategy="none", command=command
    )
    if state != "running":
        reason = "stopped early" if last < max_steps else None
        code = None if state != "completed" else 0
        record.end_attempt(state, end_step=last, exit_code=code, reason=reason)  # type: ignore[arg-type]
    return folder


def submits(config: dict[str, Any], state: str) -> bool | str:
    """Return whether it is submitted, or the message that rejects it."""
    queue = QUEUE if state in ("queued", "running") else {}
    try:
        return why_skipped(of(config), folder_of(of(config)), queue) is None
    except ConfigError as error:
        return error.messages[0].partition(":")[0]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("what", ASKED)
def test_run_that_would_train_here_is_submitted(tmp_path, state, what):
    folder, config = made(tmp_path / "run", state), asked(tmp_path / "run", **ASKED[what])
    if state in ("queued", "running"):
        assert submits(config, state) is False
        return
    resume, has_some = config["run"]["resume"], state != "none"
    rejected = resume == ("never" if has_some else "must")
    expected: bool | str = f"run.resume={resume}" if rejected else True
    if state == "completed" and what in ("the same", "must"):
        expected = False
    assert submits(config, state) == expected
    if not rejected:
        assert expected is not is_done(of(config))
    assert not has_some or RunRecord(folder).state == state


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("job", OTHERS)
def test_another_job_leaves_the_record_of_the_training(tmp_path, state, job):
    folder, config = made(tmp_path / "run", state), asked(tmp_path / "run", job)
    has_none = job == "evaluate" and state in ("none", "queued")
    expected = "job.checkpoint=latest" if has_none else True
    assert submits(config, state) == expected
    files = (folder.record_path, folder.path / "submission.json")
    before = [file.read_bytes() if file.exists() else None for file in files]
    freeze(folder_of(of(config)), config, None, Submission("/s/job-1.sh", job_id="8"))
    assert [file.read_bytes() if file.exists() else None for file in files] == before
    queue = {"8": QueuedJob("8", "PENDING", "Priority", "", "/s/job-1.sh")}
    other = asked(tmp_path / "run", job, partition="gpu", sweep="larger")
    if expected is True:
        told = why_skipped(of(other), folder_of(of(config)), queue)
        assert told is not None and f"configuration ({PARTITION}); cancel it to change" in told
    assert folder_of(of(other)).path == folder_of(of(config)).path
    assert folder_of(of(config | {"seed": 2})).path != folder_of(of(config)).path


@pytest.mark.parametrize("saves", [True, False], ids=["with the hook", "without"])
@pytest.mark.parametrize("resume", ["auto", "never"])
@pytest.mark.parametrize("state", ["completed", "preempted"])
def test_a_run_that_saved_nothing_is_never_complete(tmp_path, state, resume, saves):
    folder = made(tmp_path / "run", state, (20,))
    shutil.rmtree(folder.checkpoints)
    config = asked(folder.path, resume=resume, saves=saves)
    done = state == "completed" and resume == "auto"
    assert (why_skipped(of(config), folder, {}) == "already completed") is done
    assert is_done(of(config)) is done
    # Where its checkpoints were deleted, the record has the step.
    record = json.loads(folder.record_path.read_text())
    folder.record_path.write_text(json.dumps(record | {"checkpoint": None}))
    assert why_skipped(of(config), folder, {}) is None and not is_done(of(config))


@pytest.mark.parametrize("step", [10, 30])
def test_the_checkpoint_of_a_job_comes_from_the_environment(tmp_path, monkeypatch, step):
    folder = made(tmp_path / "run", "completed")
    config = asked(folder.path, "evaluate")
    config["job"] = {**config["job"], "checkpoint": "${oc.decode:${oc.env:STEP}}"}
    monkeypatch.setenv("STEP", str(step))
    run = from_stored(config)
    if step == 10:
        assert why_skipped(run, folder_of(run), {}) is None
        return
    with pytest.raises(ConfigError, match=r"job\.checkpoint=30: .* has no such checkpoint"):
        why_skipped(run, folder_of(run), {})


@pytest.mark.parametrize("resume", ["auto", "never"])
@pytest.mark.parametrize(("state", "steps"), [("preempted", 20), ("failed", 20), ("completed", 30)])
def test_checkpoints_are_not_ignored_without_the_hook(tmp_path, state, steps, resume):
    folder = made(tmp_path / "run", state, (20,))
    config = asked(folder.path, max_steps=steps, resume=resume, saves=False)
    message = r"hooks\.checkpointing: is missing, .*its checkpoint of step 20 in "
    with pytest.raises(ConfigError, match=message):
        why_skipped(of(config), folder, {})
    with pytest.raises(ConfigError, match=message):
        is_done(of(config))
    if state == "completed" and resume == "auto":
        config = asked(folder.path, saves=False)
        assert is_done(of(config))


@pytest.mark.parametrize("batch_size", [8, 4])
@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("step", [300, DEFAULT, 700, EPOCHS * 2])
@pytest.mark.parametrize("state", ["completed", "preempted", "failed", "paused"])
def test_epochs_have_as_many_steps_as_the_data_say(tmp_path, state, step, epochs, batch_size):
    """The data are not read on a cluster, and the default of `trainer.max_steps` decides
    nothing."""
    folder = made(tmp_path / "run", state, (step,), max_epochs=2, max_steps=DEFAULT)
    config = asked(folder.path, max_epochs=epochs, max_steps=None) | {
        "data": {"batch_size": batch_size}
    }
    has_stopped_early = step < 2 * EPOCHS
    is_same = batch_size == 8 and (epochs == 2 if has_stopped_early else epochs <= 2)
    done = state == "completed" and is_same
    assert why_skipped(of(config), folder, {}) == ("already completed" if done else None)
    if done:
        known = with_steps(config, epochs * EPOCHS)
        assert is_done(of(known))
    if state == "paused":
        config["trainer"]["pause_at"] = step
        assert why_skipped(of(config), folder, {}) == f"already paused at step {step}"


def test_a_paused_run_is_submitted_only_for_a_later_step(tmp_path):
    folder = made(tmp_path / "run", "paused")
    for pause_at, expected in ((20, "already paused at step 20"), (25, None), (None, None)):
        assert why_skipped(of(asked(folder.path, pause_at=pause_at)), folder, {}) == expected


def test_a_run_that_a_process_holds_is_running(tmp_path):
    folder = made(tmp_path / "run", "running")
    with RunLock(folder):
        told = why_skipped(of(asked(folder.path, max_steps=30)), folder, {})
        assert told is not None and told.startswith(f"running: process {os.getpid()} on ")


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("Priority", ""),
        ("JobHeldUser", ", scontrol release 7 lets it start"),
        ("JobHeldAdmin", ""),
        ("job requeued in held state", ", scontrol release 7 lets it start"),
        ("launch failed requeued held", ", scontrol release 7 lets it start"),
        ("DependencyNeverSatisfied", ", it never starts; cancel it"),
        ("PartitionConfig", ", it never starts; cancel it"),
    ],
)
def test_a_job_that_would_wait_forever_is_reported(tmp_path, reason, advice):
    folder = made(tmp_path / "run", "queued")
    queue = {"7": QueuedJob("7", "PENDING", reason, "", "/s/job-0.sh")}
    expected = f"in the queue as job 7 (pending, {reason}{advice})"
    assert why_skipped(of(asked(folder.path)), folder, queue) == expected


def test_a_queued_job_that_does_other_than_asked_is_reported(tmp_path):
    folder = made(tmp_path / "run", "queued")
    told = why_skipped(of(asked(folder.path, max_steps=30, partition="gpu")), folder, QUEUE)
    assert told is not None and told.startswith("in the queue as job 7 (pending, Priority) with")
    assert f"({PARTITION}, trainer.max_steps: 20 -> 30); cancel it" in told
    assert read_frozen(folder)[0]["trainer"]["max_steps"] == 20


@pytest.mark.parametrize("job_id", [None, "12_0"])
def test_a_job_is_found_in_the_queue_with_or_without_its_id(tmp_path, job_id):
    folder = RunFolder(tmp_path / "run")
    freeze(folder, asked(folder.path), None, Submission("/s/job-0.sh", 0, job_id=job_id))
    config = asked(folder.path)
    others = [
        QueuedJob("12_1", "PENDING", "Priority", "", "/s/job-0.sh"),
        QueuedJob("13", "RUNNING", "", "", "/s"),
    ]
    queue = {job.id: job for job in others}
    assert why_skipped(of(config), folder, queue) is None
    queue["12_0"] = QueuedJob("12_0", "PENDING", "Priority", "", "/s/job-0.sh")
    assert why_skipped(of(config), folder, queue) == "in the queue as job 12_0 (pending, Priority)"


@pytest.mark.parametrize(
    ("target", "expected"),
    [(f"{__name__}.OwnTraining", True), (f"{__name__}.OwnReport", False), ("no.such.Job", True)],
)
def test_a_users_job_trains_if_it_is_a_training(target, expected):
    assert declared(target, "trains") is expected
