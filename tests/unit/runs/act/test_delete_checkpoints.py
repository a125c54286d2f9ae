"""`runs checkpoints --delete`: what is deleted, and what never is."""

import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.checkpoint.manifest import CorruptCheckpoint, verify
from launcher.checkpoint.store import CheckpointStore
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import Holder
from launcher.rundir.record import RunRecord
from launcher.runs.__main__ import main
from launcher.runs.act import delete_checkpoints
from support import stores
from support.crash import killed

STATES = ("completed", "failed", "cancelled", "preempted", "paused", "running", "queued")
MONTH = 30 * 86400
DELETE = ("checkpoints", "--delete", "--yes")


def save(folder: RunFolder, step: int, *, is_valid: bool = True) -> None:
    store = CheckpointStore(folder.checkpoints)
    stores.save(store, step)
    if not is_valid:
        shard = store.path(step) / "shard-00000.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")


def age(folder: RunFolder, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder.record_path, (then, then))


def others(folder: RunFolder) -> dict[Path, bytes]:
    """All files of a run but its checkpoints."""
    files = [file for file in folder.path.rglob("*") if file.is_file()]
    return {file: file.read_bytes() for file in files if "checkpoints" not in file.parts}


def steps_of(folder: RunFolder) -> list[int]:
    return CheckpointStore(folder.checkpoints).steps_with_broken()


@pytest.fixture
def old_run(make_run):
    """Makes a run with checkpoints 1 to 4, which ended a month ago; 2 is the best."""

    def make(id: str, **options: Any) -> RunFolder:
        folder: RunFolder = make_run("gpt", id, rows=[{"step": 1}], **options)
        for step in range(1, 5):
            save(folder, step)
        CheckpointStore(folder.checkpoints).link("best", "step-00000002")
        folder.export.mkdir()
        (folder.export / "model.safetensors").write_bytes(b"weights")
        age(folder, MONTH)
        return folder

    return make


def test_without_yes_nothing_changes(old_run, runs):
    folder = old_run("aa")
    code, out, err = runs("checkpoints", "--delete")
    assert (code, err) == (0, "") and "Would delete 2 checkpoints of 1 run: " in out
    plans = [(row.split()[1], row.split()[-1]) for row in out.splitlines()[1:5]]
    assert plans == [("1", "delete"), ("2", "keep"), ("3", "delete"), ("4", "keep")]
    assert steps_of(folder) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("keep", "kept"),
    [([], [2, 4]), (["--keep=best"], [2]), (["--keep=step-3,best"], [2, 3]), (["--keep=99"], [4])],
)
def test_keep_names_what_stays(old_run, runs, keep, kept):
    folder = old_run("aa")
    before = others(folder)
    code, out, err = runs(*DELETE, *keep)
    assert (code, err) == (0, "") and f"Deleted {4 - len(kept)} checkpoints of 1 run" in out
    assert (steps_of(folder), others(folder)) == (kept, before)
    assert CheckpointStore(folder.checkpoints).resolve_link("latest") == kept[-1]
    assert not [*folder.checkpoints.glob(".*")]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("held", "a process is on it"),
        ("tagged", "it has a tag"),
        ("source", "another run starts from it"),
        ("planned", "another run starts from it"),
        ("initial", "another run starts from it"),
        ("damaged", "its run.json cannot be read"),
        ("young", "it is younger than 24h"),
        ("foreign", "it belongs to 12345"),
        ("copy", "it is a copy"),
        ("rotten", "none of its checkpoints verifies"),
    ],
)
def test_runs_that_are_held_or_needed_are_never_touched(
    old_run, make_run, change, runs, tmp_path, name, reason
):
    folder = old_run("aa", config={"run": {"tag": "again"}} if name == "tagged" else None)
    holder = json.dumps(asdict(Holder.current()))
    starts = {"planned": {"fork_from": "aa/1"}}
    starts["initial"] = {"init_from": str(folder.checkpoints / "step-00000001")}
    if name == "held":
        folder.lock_path.write_text(holder)
    elif name == "source":
        change(make_run("gpt", "bb"), forked_from={"id": "aa", "name": "gpt", "step": 1})
    elif name in starts:
        make_run("gpt", "bb", config={"run": starts[name]})
    elif name == "young":
        age(folder, 3600)
    elif name == "damaged":
        folder.record_path.write_text("{")
    elif name == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder.path, 12345, -1)
    elif name == "copy":
        os.rename(folder.checkpoints, tmp_path / "elsewhere")
        folder.checkpoints.symlink_to(tmp_path / "elsewhere")
        shutil.copytree(folder.path, folder.path.with_name("cc"), symlinks=True)
        # Else the original is cleaned.
        folder.lock_path.write_text(holder)
    elif name == "rotten":
        for shard in folder.checkpoints.glob("step-*/shard-00000.safetensors"):
            shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    code, out, _ = runs(*DELETE, "--older=1d", "gpt" if name == "damaged" else "aa")
    assert code == 0 and reason in out and steps_of(folder) == [1, 2, 3, 4]


def test_set_aside_and_left_behind_folders_are_deleted(old_run, runs):
    folder = old_run("aa")
    for name in ("abandoned-step-00000001", "corrupt-step-00000009", ".tmp-step-00000007-1"):
        (folder.checkpoints / name).mkdir()
        (folder.checkpoints / name / "shard").write_bytes(b"x" * 50)
    # Verifies again.
    os.rename(folder.checkpoints / "step-00000003", folder.checkpoints / "corrupt-step-00000003")
    assert runs(*DELETE)[0] == 0
    names = {entry.name for entry in folder.checkpoints.iterdir()}
    assert names == {"latest", "best", "step-00000002", "step-00000004", "corrupt-step-00000003"}


def test_a_run_that_changes_meanwhile_is_left(old_run):
    folder = old_run("aa")
    run = delete_checkpoints.StoredRun.read(folder.path)
    seen = run.updated
    age(folder, 60)
    with pytest.raises(ConfigError, match="has changed"):
        delete_checkpoints.delete_of_run(run, seen, ["latest"], True)
    assert steps_of(folder) == [1, 2, 3, 4]


def test_a_failure_to_delete_is_reported(old_run, runs, monkeypatch):
    old_run("aa")

    def fails(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(delete_checkpoints.shutil, "rmtree", fails)
    code, _, err = runs(*DELETE)
    assert code == 1 and "gpt/aa: cannot be deleted (Input/output error)" in err


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--older", "30"], "--older=30: "),
        (["--older", "-1d"], "argument --older: "),
        (["--keep", "beast"], "--keep=beast: "),
        (["--keep="], "--keep=: "),
        (["--at", "3"], "--at: "),
        ([""], "'': "),
    ],
)
def test_bad_options_are_rejected(old_run, runs, monkeypatch, words, key):
    """An empty word does not mean the current folder."""
    folder = old_run("aa")
    monkeypatch.chdir(folder.path)
    code, _, err = runs(*DELETE, *words)
    assert code == 2 and err.startswith(key) and steps_of(folder) == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_kill_at_any_call_leaves_nothing_half(old_run, outputs, tmp_path):
    folder, died, kill_at = old_run("aa"), True, 0
    shutil.copytree(outputs, tmp_path / "pristine", symlinks=True)
    words = ["--outputs", str(outputs), *DELETE]
    while died:
        kill_at += 1
        shutil.rmtree(outputs)
        shutil.copytree(tmp_path / "pristine", outputs, symlinks=True)
        age(folder, MONTH)
        died, _ = killed(lambda: main(words) and None, kill_at)
        for step in steps_of(folder):  # each that is visible is whole
            verify(folder.checkpoints / f"step-{step:08d}")
        assert {2, 4} <= {*steps_of(folder)}
        assert main(words) == 0
        assert steps_of(folder) == [2, 4] and not [*folder.checkpoints.glob(".*")]
    assert kill_at > 8


@st.composite
def run_states(draw: st.DrawFn) -> dict[str, Any]:
    steps = draw(st.lists(st.integers(1, 9), unique=True, max_size=4))
    return {
        "state": draw(st.sampled_from(STATES)),
        "is_held": draw(st.booleans()),
        "tag": draw(st.sampled_from([None, "again"])),
        "age": draw(st.sampled_from([0, MONTH])),
        "steps": {step: draw(st.booleans()) for step in steps},
        "best": draw(st.sampled_from([None, *steps])),
        "fork_of": draw(st.sampled_from([None, 0, 1, 2])),
    }


def made(outputs: Path, index: int, given: dict[str, Any]) -> RunFolder:
    folder = RunFolder(outputs / "gpt" / f"run{index}").create()
    record = RunRecord(folder)
    record.data |= {"config": {"run.tag": given["tag"]}, "step": 3}
    if given["fork_of"] not in (None, index):
        record.data["forked_from"] = {"id": f"run{given['fork_of']}", "name": "gpt", "step": 1}
    for step in sorted(given["steps"]):
        save(folder, step, is_valid=given["steps"][step])
    if given["best"] is not None:
        CheckpointStore(folder.checkpoints).link("best", f"step-{given['best']:08d}")
    record.begin_attempt(start_step=0, max_steps=9, world_size=1, strategy="none")
    record.data["state"] = given["state"]
    record.progress(3, force=True)
    folder.metrics_path.write_text('{"step": 1}\n')
    if given["is_held"]:
        folder.lock_path.write_text(json.dumps(asdict(Holder.current())))
    age(folder, given["age"])
    return folder


def valid_steps(folder: RunFolder) -> list[int]:
    valid = []
    for step in steps_of(folder):
        with suppress(CorruptCheckpoint):
            verify(folder.checkpoints / f"step-{step:08d}")
            valid.append(step)
    return valid


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(run_states(), min_size=1, max_size=3),
    st.lists(st.sampled_from(["best", "latest", "1", "5"]), min_size=1, max_size=2),
    st.sampled_from([[], ["--older", "7d"]]),
)
def test_over_all_states_of_runs(tmp_path, states, keep, older):
    outputs = tmp_path / "outputs"
    shutil.rmtree(outputs, ignore_errors=True)
    folders = [made(outputs, index, given) for index, given in enumerate(states)]
    before = [(steps_of(folder), valid_steps(folder), others(folder)) for folder in folders]
    sources = {each["fork_of"] for index, each in enumerate(states) if each["fork_of"] != index}
    main(["--outputs", str(outputs), *DELETE, f"--keep={','.join(keep)}", *older])
    for index, (folder, run) in enumerate(zip(folders, states, strict=True)):
        (steps, valid, files), left = before[index], steps_of(folder)
        assert others(folder) == files
        is_needed = run["is_held"] or run["tag"] is not None or index in sources
        if is_needed or (older and run["age"] == 0) or not valid:
            assert left == steps
            continue
        named = {"latest": max(steps), "best": run["best"], "1": 1, "5": 5}
        asked = {named[name] for name in keep} & {*steps}
        assert valid_steps(folder) and asked <= {*left} and len(left) <= len(asked) + 1
