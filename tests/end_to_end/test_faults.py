"""Saves that die, fail, or hang: the checkpoint before stands, training continues, and nothing of
it is silent."""

import os
import re
import subprocess
from pathlib import Path
from shlex import split

import pytest

from launcher.checkpoint.durable_files import write_file
from launcher.checkpoint.manifest import verify
from support import python
from support.paths import SUPPORT
from support.runner import (
    ENVIRONMENT,
    final_state,
    launch,
    metrics,
    record,
    run_folder,
    steps,
    stop_at,
)

RUN = split(
    "model=mlp data=digits data.batch_size=60 trainer.max_steps=40 hooks.evaluation.interval=0"
    " hooks.checkpointing.interval=10 hooks.progress.interval=10 hooks.logging.interval=1"
)


KEEP_ALL = "hooks.checkpointing.keep_previous=9"
WAITING = "hooks.checkpointing.asynchronous=false"


def broken(steps: list[int], **how: object) -> str:
    settings = {"steps": str(steps).replace(" ", ""), **how}
    arguments = ",".join(f"{key}:{value}" for key, value in settings.items())
    return f"+tracker.broken_{steps[0]}={{_target_:support.broken_disk.BrokenDisk,{arguments}}}"


# ------------------------------------------------------------------------------------------- killed
@pytest.fixture
def crash(tmp_path):
    def crash(how: str = "", name: str = "crash.py", code: int = 0) -> str:
        env = {**ENVIRONMENT, "TMPDIR": str(tmp_path)}  # what is killed leaves its folders there
        done = python.run(str(SUPPORT / name), *how.split(), env=env, timeout=500)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return crash


def test_killed_at_every_call(crash):
    """First, later, repeated, pruning saves: afterwards the newest is the one before or the new
    one, whole; also if the power was cut."""
    assert crash("kill").count("0 wrong") == 4


def test_killed_at_random_moments(crash):
    """And started again each time: weights, random state, data order and metrics are those of a run
    left alone."""
    assert "15 kills in" in crash(name="kills.py")


def test_without_fsync_a_power_cut_would_show(crash):
    assert "manifest.json cannot be read" in crash("without-fsync", code=1)


def test_order_of_a_save(crash):
    """Files are fsynced before the manifest is begun, it and its folder before the rename, and then
    the parent."""
    calls = [tuple(line.split("\t")[:2]) for line in crash("calls").splitlines()]
    folder = ".tmp-step-00000010-1"
    manifest = calls.index(("open", f"{folder}/manifest.json"))
    written = {path for name, path in calls if name == "pwrite"}
    assert len(written) == 7
    for path in written - {f"{folder}/manifest.json"}:
        last_write = max(i for i, call in enumerate(calls) if call == ("pwrite", path))
        assert last_write < calls.index(("fsync", path)) < manifest
    order = [("fsync", f"{folder}/manifest.json"), ("fsync", folder), ("rename", folder)]
    order.append(("replace", ".tmp-latest"))
    places = [calls.index(call) for call in order]
    assert places == sorted(places)
    assert calls[places[2] + 1] == ("fsync", "root")


# --------------------------------------------------------------------------------- failing in a run
def test_training_continues_and_retries(tmp_path):
    faults = {
        "open": "EACCES",
        "pwrite": "ENOSPC",
        "fsync": "EIO",
        "rename": "EIO",
        "mkdir": "EROFS",
    }
    hooks = [
        broken([10 * i], call=call, how=how) for i, (call, how) in enumerate(faults.items(), 2)
    ]
    done = launch(tmp_path, *RUN, "trainer.max_steps=80", *hooks, KEEP_ALL, code=0)
    assert done.output.count("could not be written: rank 0: ") == 5
    assert "Traceback" not in done.output and steps(tmp_path) == [10, 70, 80]
    left = list((run_folder(tmp_path) / "checkpoints").glob(".*"))
    assert not left, "what failed gives its room back"
    assert record(tmp_path)["state"] == "completed"


def test_out_of_memory_says_what_needs_less(tmp_path):
    """A layer of 256 TB, more than a process can address."""
    done = launch(tmp_path, *RUN, "model.hidden_dim=1000000000000", code=1)
    assert "can't allocate memory" in done.output, done.output
    assert "Less memory is needed with trainer.activation_checkpointing=full" in done.output
    assert record(tmp_path)["state"] == "failed"


@pytest.mark.parametrize("on_signal", [False, True])
def test_a_failure_at_the_end_is_in_the_exit_code(tmp_path, on_signal):
    stop = stop_at(33) if on_signal else []
    launch(tmp_path, *RUN, broken([33, 40], how="EIO"), *stop, code=1)
    now = record(tmp_path)
    assert now["state"] == now["attempts"][-1]["outcome"] == "failed"
    assert "Input/output error" in now["attempts"][-1]["reason"]
    assert steps(tmp_path)[-1] == 30
    if not on_signal:
        launch(tmp_path, *RUN, code=0)
        assert record(tmp_path)["attempts"][-1]["start_step"] == 30


@pytest.fixture
def small_disk(tmp_path):
    """Four megabytes of tmpfs."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_without_room_is_noticed_before_the_first_byte(small_disk, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *_: pytest.fail("it wrote"))
    with pytest.raises(OSError, match="No space left"):
        write_file(small_disk / "x", [b"1"], size=100 << 20)


def test_a_disk_that_is_full_at_the_start(small_disk):
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "ballast").write_bytes(bytes(free - 4096))
    done = launch(small_disk / "outputs", *RUN, code=2)
    sentence = r"run\.dir='.*': cannot be written \(No space left on device\); make room .*"
    assert re.fullmatch(sentence, done.output.splitlines()[-1]) and "Traceback" not in done.output
    assert not list(small_disk.rglob(".run.lock.*"))


def fill(disk: Path, **when: int) -> str:
    options = ",".join(f"{key}:{value}" for key, value in when.items())
    return f"+tracker.full={{_target_:support.broken_disk.FullDisk,file:{disk}/ballast,{options}}}"


def test_a_disk_that_stays_full(small_disk):
    """There is room for lines, but for no checkpoint: training continues to its end, and the run
    has failed."""
    filled = fill(small_disk, step=15, free=128 << 10)
    done = launch(small_disk / "outputs", *RUN, WAITING, filled, code=1)
    assert done.output.count("No space left on device") >= 3 and "Traceback" not in done.output
    now = record(small_disk / "outputs")
    assert now["step"] == 40 and now["state"] == "failed"
    assert "No space left" in now["attempts"][-1]["reason"]
    assert steps(small_disk / "outputs") == [10]
    assert [line["step"] for line in metrics(small_disk / "outputs")] == list(range(41))


def test_a_disk_that_is_full_for_a_while(small_disk, whole):
    """Nothing at all can be written from step 15 to step 35; what could not be is written when
    there is room again."""
    outputs = small_disk / "outputs"
    done = launch(outputs, *RUN, WAITING, fill(small_disk, step=15, until=35))
    assert done.returncode == 0 and "Traceback" not in done.output, done.output
    assert done.output.count("metrics.jsonl cannot be written") == 1
    assert record(outputs)["state"] == "completed" and steps(outputs) == [10, 40]
    assert final_state(outputs) == final_state(whole) and metrics(outputs) == metrics(whole)


# ---------------------------------------------------------------------------------- hanging writers
def test_a_writer_that_hangs_is_given_up(tmp_path):
    """During training, training continues and waits for each later save; at the end, the hanging
    writer is a failure."""
    hang = (broken([10, 40], call="fsync", how="hang"), "hooks.checkpointing.write_timeout=4")
    done = launch(tmp_path, *RUN, *hang, KEEP_ALL, code=1)
    assert done.output.count("The checkpoint could not be written: its writer has hung") == 2
    assert "Step 10: checkpoint copied" in done.output
    assert "Step 20: checkpoint saved" in done.output and "Step 30: checkpoint saved" in done.output
    assert steps(tmp_path) == [20, 30]
    assert "hung" in record(tmp_path)["attempts"][-1]["reason"]


# ---------------------------------------------------------------------------- signals and isolation
@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbs, and that waits for each save."""
    outputs = tmp_path_factory.mktemp("whole")
    launch(outputs, *RUN, WAITING, KEEP_ALL, code=0)
    return outputs


def test_signals_during_a_save(tmp_path, whole):
    """The disk takes its time: signals come while the checkpoint of step 10, and then that of step
    11, is written."""
    again = "{_target_:support.broken_disk.SignalInSave,step:11,signums:[SIGTERM,SIGUSR1]}"
    slow = [broken([10, 11], call="fsync", how=0.1), f"+tracker.again={again}"]
    stopped = launch(tmp_path, *RUN, *slow, *stop_at(11), code=143)
    assert record(tmp_path)["step"] == steps(tmp_path)[-1] == 11
    assert stopped.output.count("Step 11: checkpoint") == 1, "one commit"
    assert "SIGUSR1 in the save" in stopped.output
    for path in (run_folder(tmp_path) / "checkpoints").glob("step-*"):
        verify(path)
    launch(tmp_path, *RUN, code=0)
    assert final_state(tmp_path) == final_state(whole)


def test_a_snapshot_is_of_its_own_step(tmp_path, whole):
    """Written slowly while training continues: on disk are weights and moments of step 10, not of a
    later one."""
    done = launch(tmp_path, *RUN, broken([10], how=0.05), KEEP_ALL, code=0)
    assert "Step 10: checkpoint copied" in done.output
    one, other = (run_folder(each) / "checkpoints/step-00000010" for each in (tmp_path, whole))
    for name in ("shard-00000.safetensors", "rank-00000.safetensors", "state.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


# ------------------------------------------------------------------------------------ several ranks
def test_ranks_agree(tmp_path):
    """One rank's failure is all ranks', and one rank's hanging writer is given up by all."""
    two = (*RUN, "strategy=ddp", "dispatch.nproc=2", "hooks.checkpointing.write_timeout=4")
    faults = [
        broken([10], call="open", how="EIO", rank=1),
        broken([20], call="fsync", how="hang", rank=1),
    ]
    first = launch(tmp_path, *two, *faults, KEEP_ALL, *stop_at(34, group=False), code=143)
    assert "could not be written: rank 1: " in first.output
    assert "its writer has hung" in first.output
    found = steps(tmp_path)
    assert found[0] == 30 and len(found) == 2


def test_one_rank_is_killed_in_a_save(tmp_path, two_whole):
    """All end; the checkpoint before is whole, and the next attempt resumes from it. Where to
    resume is for rank 0 to say: the other is never asked."""
    killed = launch(tmp_path, *TWO, broken([20], how="kill", rank=1))
    assert killed.returncode == 1 and "Rank 1 of 2 failed" in killed.output, killed.output
    assert steps(tmp_path) == [10]
    verify(run_folder(tmp_path) / "checkpoints" / "step-00000010")
    launch(tmp_path, *TWO, "+tracker.blind={_target_:support.broken_disk.BlindRank,rank:1}", code=0)
    assert record(tmp_path)["attempts"][-1]["start_step"] == 10
    assert final_state(tmp_path) == final_state(two_whole)
    assert metrics(tmp_path) == metrics(two_whole)


TWO = (*RUN, "strategy=ddp", "dispatch.nproc=2", "hooks.checkpointing.asynchronous=false")


@pytest.fixture(scope="module")
def two_whole(tmp_path_factory):
    """Two ranks that nothing disturbs."""
    outputs = tmp_path_factory.mktemp("two")
    launch(outputs, *TWO, code=0)
    return outputs
