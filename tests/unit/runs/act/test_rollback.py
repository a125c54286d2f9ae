"""`runs rollback`: what is later than a checkpoint is set aside, also over kills."""

import json
import os
import shutil
from pathlib import Path

import pytest

from launcher.checkpoint.store import CheckpointStore
from launcher.config.run_config import RunConfig
from launcher.remaining import Train, remaining
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import read_record
from launcher.runs.__main__ import main
from launcher.runs.act import rollback
from support.crash import killed
from support.stores import save
from support.submitted import note_job

STEPS = (5, 10, 15, 20)
FILES = ("metrics", "evaluations")


@pytest.fixture
def folder(make_run):
    """A completed run with four checkpoints, lines, images and evaluations."""
    best = {"metric": "val/loss", "value": 0.1, "step": 20}
    folder = make_run("gpt", "1a2b", step=20, best=best)
    for step in STEPS:
        save(CheckpointStore(folder.checkpoints), step, best=step in (5, 20))
    for step in (10, 15):
        (folder.path / "images" / str(step)).mkdir(parents=True)
    rows = [{"step": step, "train/loss": float(step)} for step in range(1, 21)]
    for name in FILES:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder.path / f"{name}.jsonl").write_text(text)
    return folder


@pytest.fixture
def shorter(make_run):
    """Makes a run with two checkpoints."""

    def make(state="completed", **options):
        folder = make_run("gpt", "77f0", state=state, step=12, **options)
        for step in (5, 10):
            save(CheckpointStore(folder.checkpoints), step)
        return folder

    return make


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def steps_of(folder: RunFolder) -> list[int]:
    return CheckpointStore(folder.checkpoints).steps()


def what_remains(folder: RunFolder):
    config = {
        "run": {"name": "n", "id": "i", "dir": str(folder.path)},
        "trainer": {"max_steps": 20},
        "hooks": {"checkpointing": {"interval": 5}},
        "data": {},
    }
    return remaining(RunConfig(config, config), folder)


def check_is_at_10(folder: RunFolder) -> None:
    store = CheckpointStore(folder.checkpoints)
    assert store.steps() == [5, 10]
    assert store.resolve_link("latest") == 10
    assert store.resolve_link("best") == 5
    for name in FILES:
        assert steps_in(folder.path / f"{name}.jsonl") == [*range(1, 11)]
        assert steps_in(folder.path / f"abandoned-{name}.jsonl") == [*range(11, 21)]
    record = read_record(folder.record_path)
    assert (record["state"], record["step"], record["loss"]) == ("paused", 10, 10.0)
    assert what_remains(folder) == Train(10)


def test_all_that_is_later_is_set_aside(runs, folder):
    code, output, error = runs("rollback", "1a2b", "10")
    assert (code, error) == (0, "")
    assert "abandoned-step-00000015" in output and "is at step 10." in output
    check_is_at_10(folder)
    images = sorted(entry.name for entry in (folder.path / "images").iterdir())
    assert images == ["10", "abandoned-15"]
    record = read_record(folder.record_path)
    assert (record["checkpoint"], record["best"]) == (10, None)
    assert record["logged"]["newest"]["train/loss"] == [10.0, 10]


def test_a_second_rollback_and_one_to_the_newest(runs, folder):
    code, output, _ = runs("rollback", "1a2b", "20")
    assert code == 0 and "nothing to do" in output
    assert read_record(folder.record_path)["state"] == "completed"
    assert runs("rollback", "1a2b", "15")[0] == 0
    before = sorted(os.listdir(folder.path))
    assert "nothing to do" in runs("rollback", "1a2b", "step-00000015")[1]
    assert sorted(os.listdir(folder.path)) == before
    code, output, _ = runs("rollback", "1a2b", "best")
    assert code == 0 and "gpt/1a2b is at step 5." in output
    for part in ("abandoned-step-00000015", "abandoned-step-00000010", "Set aside: 20 lines"):
        assert part in output
    assert steps_in(folder.path / "abandoned-metrics.jsonl") == [*range(16, 21)]
    assert steps_in(folder.path / "abandoned-metrics.2.jsonl") == [*range(6, 16)]


@pytest.mark.parametrize(
    ("step", "hint"),
    [
        *((step, "step-00000010, step-00000015, step-00000020.") for step in ("12", "0")),
        *((word, "should be the step of a checkpoint") for word in ("latest", "../5", "-1")),
    ],
)
def test_a_step_without_a_checkpoint_is_rejected(runs, folder, step, hint):
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")}
    code, output, error = runs("rollback", "1a2b", step)
    assert (code, output) == (2, "") and f"{step}" in error and hint in error
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")} == before


def test_a_damaged_checkpoint_is_rejected(runs, folder):
    shard = folder.checkpoints / "step-00000010" / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    code, _, error = runs("rollback", "1a2b", "10")
    assert code == 2 and "step-00000010 is damaged: shard-00000.safetensors has changed" in error
    assert steps_of(folder) == [*STEPS]


def test_a_running_run_is_rejected(runs, shorter):
    folder = shorter("running")
    code, _, error = runs("rollback", "77f0", "5")
    assert code == 2 and f"process {os.getpid()} on " in error and "is on this run" in error
    assert steps_of(folder) == [5, 10]


@pytest.mark.parametrize("state", ["queued", "failed", "preempted", "stale"])
def test_the_state_of_a_run_that_has_not_ended_well_stays(runs, shorter, state):
    """`retry` submits it, and a queued job continues from the step."""
    folder = shorter(state)
    if state == "queued":
        RunRecord(folder).queue()
    assert runs("rollback", "77f0", "5")[0] == 0
    record = read_record(folder.record_path)
    assert record["state"] == ("failed" if state == "stale" else state) and record["step"] == 5
    if state == "stale":
        last = record["attempts"][-1]
        assert (last["outcome"], last["end_step"]) == ("killed", 12)


@pytest.mark.parametrize(
    ("job", "calls", "kept"),
    [
        ("PENDING|Priority", "hold 7\nrelease 7\n", [5]),
        ("PENDING|JobHeldUser", "", [5]),
        ("SUSPENDED|None", "", [5, 10]),
        ("COMPLETING|None", "", [5, 10]),
    ],
)
def test_a_job_that_waits_is_on_hold_meanwhile(runs, shorter, slurm, tmp_path, job, calls, kept):
    """A suspended process gives no sign of life, and goes on."""
    folder = shorter("preempted")
    note_job(folder, "/s/job-0.sh", job_id="7")
    (tmp_path / "calls").touch()
    slurm(squeue=f"echo '7|{job}||/s/job-0.sh'", scontrol=f"echo $@ >>{tmp_path}/calls")
    code, output, error = runs("rollback", "77f0", "5")
    assert (steps_of(folder), (tmp_path / "calls").read_text()) == (kept, calls)
    assert code == (0 if kept == [5] else 2) and "SLURM job 7" in output + error
    assert ("scontrol release 7" in output) == (job == "PENDING|JobHeldUser")


@pytest.mark.parametrize("times", [1, 3])
def test_a_release_that_slurm_does_not_answer_is_asked_again(
    runs, shorter, slurm, tmp_path, monkeypatch, times
):
    monkeypatch.setattr(rollback, "PAUSE", 0.01)
    folder = shorter("preempted")
    note_job(folder, "/s/job-0.sh", job_id="7")
    silent = 'echo "Unable to contact slurm controller" >&2; exit 1'
    asked = f"echo $@ >>{tmp_path}/calls; [ $(grep -c release {tmp_path}/calls) -gt {times} ]"
    scontrol = f"[ $1 = hold ] || {{ {asked} || {{ {silent}; }}; }}"
    slurm(squeue="echo '7|PENDING|Priority||/s/job-0.sh'", scontrol=scontrol)
    code, output, error = runs("rollback", "77f0", "5")
    assert code == 0 and "is at step 5" in output and "Asking again" in error
    assert (tmp_path / "calls").read_text() == "release 7\n" * (times + 1)
    assert not (folder.path / ".hold").exists()


@pytest.mark.parametrize("answer", ["Unable to contact slurm controller", "Access denied"])
@pytest.mark.parametrize("first", ["5", "10"])
def test_a_job_that_a_rollback_has_left_on_hold_is_released_by_the_next_one(
    runs, shorter, slurm, tmp_path, monkeypatch, answer, first
):
    """A job that its user holds stays on hold."""
    monkeypatch.setattr(rollback, "QUERY_SECONDS", 0)
    folder = shorter("preempted")
    note_job(folder, "/s/job-0.sh", job_id="7")
    queue = "echo '7|PENDING|Priority||/s/job-0.sh'"
    slurm(squeue=queue, scontrol=f'[ $1 = hold ] || {{ echo "{answer}" >&2; exit 1; }}')
    code, output, error = runs("rollback", "77f0", first)
    assert code == 2 and f"step {first}" in output
    assert "SLURM job 7 is still on hold" in error and "scontrol release 7" in error
    slurm(squeue=queue.replace("Priority", "JobHeldUser"), scontrol=f"echo $@ >>{tmp_path}/calls")
    code, output, _ = runs("rollback", "77f0", first)
    assert code == 0 and "nothing to do" in output and "scontrol release" not in output
    assert "release 7\n" in (tmp_path / "calls").read_text()
    (tmp_path / "calls").unlink()
    code, output, _ = runs("rollback", "77f0", first)
    assert code == 0 and "scontrol release 7" in output and not (tmp_path / "calls").exists()


def test_a_copy_does_not_roll_its_original_back(runs, folder, tmp_path):
    shutil.move(folder.checkpoints, tmp_path / "elsewhere")
    folder.checkpoints.symlink_to(tmp_path / "elsewhere")
    copy = shutil.copytree(folder.path, tmp_path / "copy", symlinks=True)
    code, _, error = runs("rollback", copy, "10")
    assert code == 2 and error.startswith("'gpt/1a2b': is a copy") and steps_of(folder) == [*STEPS]
    code, _, error = runs("rollback", "1a2b", "10")
    assert code == 2 and "is a link to" in error and steps_of(folder) == [*STEPS]


@pytest.mark.parametrize("is_signed", [True, False])
def test_checkpoints_elsewhere_are_rolled_back_where_the_signed_record_names_them(
    runs, make_run, change, tmp_path, is_signed
):
    hooks = {"checkpointing": {"path": str(tmp_path / "there")}}
    folder = make_run("gpt", "aa", step=20, config={"hooks": hooks})
    elsewhere = tmp_path / "there" / "gpt" / "aa"
    for step in STEPS:
        save(CheckpointStore(elsewhere), step)
    folder.checkpoints.symlink_to(elsewhere)
    if not is_signed:
        change(folder, signature="forged")
    code, _, error = runs("rollback", "aa", "10")
    assert code == (0 if is_signed else 2), error
    assert steps_of(folder) == ([5, 10] if is_signed else [*STEPS])


@pytest.mark.slow
def test_a_kill_at_any_call_leaves_a_run_that_resumes(folder, outputs, tmp_path):
    """And the repeated command does the rest."""
    shutil.copytree(folder.path, tmp_path / "template", symlinks=True)
    words = ["rollback", "1a2b", "10", "--outputs", str(outputs)]
    kill_at, died, newest = 0, True, set()
    while died:
        kill_at += 1
        shutil.rmtree(folder.path)
        shutil.copytree(tmp_path / "template", folder.path, symlinks=True)
        died, _ = killed(lambda: main(words) and None, kill_at)
        store = CheckpointStore(folder.checkpoints)
        store.recover()
        valid = store.newest_valid()
        assert valid is not None and read_record(folder.record_path)
        newest.add(valid[1].step)
        if valid[1].step < 20:
            assert what_remains(folder) == Train(valid[1].step), kill_at
        assert main(words) == 0
        check_is_at_10(folder)
    assert newest == {10, 15, 20} and kill_at > 20
