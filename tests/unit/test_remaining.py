"""The work that is left of a run which was really trained."""

from dataclasses import replace

import pytest

import launcher
from launcher.errors import ConfigError
from launcher.remaining import Done, Held, Queued, Train, remaining
from launcher.rundir.lock import RunLock
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.submission import Submission, freeze
from support.composition import run_of

SMALL = ["model=gpt", "model.dim=8", "model.num_layers=1", "model.num_heads=1", "device=cpu"]
TEXT = ["data=text", "data.files=[a.txt]", "data.seq_len=4", "data.batch_size=2"]
COMMAND = [*SMALL, *TEXT, "trainer.max_steps=2", "hooks.evaluation.interval=0"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of two steps."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "a.txt").write_text("to be or not to be " * 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        launcher.compose(*COMMAND).train()
    return folder


def left(*overrides, queue=None):
    run = run_of([*COMMAND, *overrides])
    return remaining(run, run.folder, queue)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    {
        "the same command": ((), Done("completed", 2, 2)),
        "fewer steps": (("trainer.max_steps=1",), Train(0)),
        "more steps under its id": (("trainer.max_steps=3", "run.id=ID"), Train(2)),
        "fewer steps under its id": (("trainer.max_steps=1", "run.id=ID"), Done("completed", 2, 1)),
        "a test of the best checkpoint": (("hooks.evaluation.test=last",), Train(2)),
        "another run": (("seed=1",), Train(0)),
        "the same again": (("run.tag=again",), Train(0)),
    }.values(),
)
def test_what_a_command_leaves_to_do(trained, monkeypatch, overrides, expected):
    monkeypatch.chdir(trained)
    own = run_of(COMMAND).run.id
    assert left(*(word.replace("ID", own) for word in overrides)) == expected


def test_a_run_is_held_while_a_process_is_on_it(trained, monkeypatch):
    monkeypatch.chdir(trained)
    run = run_of([*COMMAND, "seed=2"])
    lock = RunLock(run.folder.create())
    lock.acquire()
    try:
        rest = left("seed=2")
        assert isinstance(rest, Held) and rest.is_here
    finally:
        lock.release()


def test_a_job_in_the_queue_is_found_by_its_script(trained, monkeypatch):
    monkeypatch.chdir(trained)
    run = run_of([*COMMAND, "seed=3"])
    job = QueuedJob("7", "PENDING", "Priority", "", "/s/job.sh")
    freeze(run.folder, run.of_the_run, None, Submission("/s/job.sh"))
    assert left("seed=3", queue={"7": job}) == Queued(job, "")
    assert left("seed=3", queue={"7": replace(job, script="/other.sh")}) == Train(0)


def test_changed_data_of_a_completed_run_are_rejected(trained, monkeypatch):
    monkeypatch.chdir(trained)
    text = (trained / "a.txt").read_text()
    (trained / "a.txt").write_text(text.replace("not", "now"))
    try:
        with pytest.raises(ConfigError, match="data"):
            left()
    finally:
        (trained / "a.txt").write_text(text)
    assert left() == Done("completed", 2, 2)
