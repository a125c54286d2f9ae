"""`runs checkpoints --delete`: what is deleted, and what never is."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.checkpoint.files import write_file
from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, verify
from launcher.checkpoint.store import CheckpointStore
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.rundir.holder import Holder
from launcher.rundir.record import RunRecord
from launcher.runs import delete_checkpoints
from launcher.runs.__main__ import main

STATES = ("completed", "failed", "cancelled", "preempted", "paused", "running", "queued")
MONTH = 30 * 86400


def save(folder: RunFolder, step: int, *, is_valid: bool = True) -> None:
    """A checkpoint of a few bytes."""
    store = CheckpointStore(folder.checkpoints)
    part = store.begin(step)
    entry = write_file(part / "shard-00000", [b"x" * 100])
    final = store.commit(
        part, Manifest(step, 1, "none", "sharded", run=f"gpt/{folder.path.name}", files=[entry])
    )
    store.link("latest", final.name)
    if not is_valid:
        (final / "shard-00000").write_bytes(b"y" * 100)


def age(folder: RunFolder, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder.record_path, (then, then))


def digests(folder: RunFolder) -> dict[str, str]:
    """All files of a run but its checkpoints."""
    files = [
        file
        for file in folder.path.rglob("*")
        if file.is_file() and "checkpoints" not in file.parts
    ]
    return {str(file): hashlib.md5(file.read_bytes()).hexdigest() for file in files}


def steps_of(folder: RunFolder) -> list[int]:
    return CheckpointStore(folder.checkpoints).steps_with_broken()


@pytest.fixture
def old_run(make_run: Any) -> Any:
    """Makes a run with checkpoints 1 to 4, which ended a month ago; 2 is the best."""

    def make(id: str, config: dict[str, Any] | None = None, **options: Any) -> RunFolder:
        folder: RunFolder = make_run("gpt", id, config=config, **options)
        for step in range(1, 5):
            save(folder, step)
        CheckpointStore(folder.checkpoints).link("best", "step-00000002")
        folder.metrics_path.write_text('{"step": 1}\n')
        folder.export.mkdir()
        (folder.export / "model.safetensors").write_bytes(b"weights")
        age(folder, MONTH)
        return folder

    return make


def test_without_yes_nothing_changes(old_run: Any, runs: Any) -> None:
    folder = old_run("aa")
    code, out, err = runs("checkpoints", "--delete")
    assert (code, err) == (0, "")
    assert "Would delete 2 checkpoints of 1 run: " in out
    plans = [(row.split()[1], row.split()[-1]) for row in out.splitlines()[1:5]]
    assert plans == [("1", "delete"), ("2", "keep"), ("3", "delete"), ("4", "keep")]
    (plan,) = json.loads(runs("checkpoints", "--delete", "--json")[1])
    assert [Path(path).name for path in plan["delete"]] == ["step-00000001", "step-00000003"]
    assert plan["keep"] == ["step-00000002", "step-00000004"] and plan["bytes"] > 200
    assert steps_of(folder) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ([], [2, 4]),
        (["best"], [2]),
        (["latest"], [4]),
        (["1"], [1]),
        (["step-3,best"], [2, 3]),
        (["99"], [4]),
    ],
)
def test_keep_names_what_stays(old_run: Any, runs: Any, keep: list[str], kept: list[int]) -> None:
    folder = old_run("aa")
    before = digests(folder)
    code, out, err = runs("checkpoints", "--delete", "--yes", *(f"--keep={each}" for each in keep))
    assert (code, err) == (0, "")
    assert f"Deleted {4 - len(kept)} checkpoints of 1 run" in out
    assert steps_of(folder) == kept
    assert digests(folder) == before
    assert CheckpointStore(folder.checkpoints).linked("latest") == kept[-1]
    assert not [*folder.checkpoints.glob(".*")]


def test_older_leaves_younger_runs(old_run: Any, runs: Any) -> None:
    old, young = old_run("aa"), old_run("bb")
    age(young, 3600)
    code, out, _ = runs("checkpoints", "--delete", "--older", "1d", "--yes")
    assert (code, steps_of(old), steps_of(young)) == (0, [2, 4], [1, 2, 3, 4])
    assert "Not touched: 1 run, it is younger than 24h." in out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("held", "a process is on it"),
        ("tagged", "it has a tag"),
        ("source", "another run starts from it"),
        ("planned", "another run starts from it"),
        ("initial", "another run starts from it"),
        ("damaged", "its run.json cannot be read"),
        ("foreign", "it belongs to another user"),
        ("copy", "it is a copy"),
    ],
)
def test_runs_that_are_held_or_needed_are_never_touched(
    old_run: Any, make_run: Any, runs: Any, tmp_path: Path, name: str, reason: str
) -> None:
    folder = old_run("aa", config={"run": {"tag": "again"}} if name == "tagged" else None)
    if name == "held":
        folder.lock_path.write_text(json.dumps(asdict(Holder.current())))
    elif name == "source":
        fork = make_run("gpt", "bb")
        data = json.loads(fork.record_path.read_text())
        fork.record_path.write_text(
            json.dumps(data | {"forked_from": {"id": "aa", "name": "gpt", "step": 1}})
        )
    elif name == "planned":
        make_run("gpt", "bb", config={"run": {"fork_from": "aa/1"}})
    elif name == "initial":
        make_run(
            "gpt", "bb", config={"run": {"init_from": str(folder.checkpoints / "step-00000001")}}
        )
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
        folder.lock_path.write_text(json.dumps(asdict(Holder.current())))
    code, out, _ = runs("checkpoints", "--delete", "--yes", "gpt" if name == "damaged" else "aa")
    assert code == 0
    assert reason in out
    assert steps_of(folder) == [1, 2, 3, 4]


def test_a_damaged_newest_does_not_count_as_the_one_that_is_kept(old_run: Any, runs: Any) -> None:
    folder = old_run("aa")
    (folder.checkpoints / "step-00000004" / "shard-00000").write_bytes(b"z" * 100)
    runs("checkpoints", "--delete", "--keep", "latest", "--yes")
    assert steps_of(folder) == [3, 4]


def test_set_aside_and_left_behind_folders_are_deleted(old_run: Any, runs: Any) -> None:
    folder = old_run("aa")
    for name in ("abandoned-step-00000001", "corrupt-step-00000009", ".tmp-step-00000007-1"):
        (folder.checkpoints / name).mkdir()
        (folder.checkpoints / name / "shard").write_bytes(b"x" * 50)
    # Verifies again.
    os.rename(folder.checkpoints / "step-00000003", folder.checkpoints / "corrupt-step-00000003")
    assert runs("checkpoints", "--delete", "--yes")[0] == 0
    names = {entry.name for entry in folder.checkpoints.iterdir()}
    assert names == {"latest", "best", "step-00000002", "step-00000004", "corrupt-step-00000003"}


def test_a_run_that_changes_meanwhile_is_left(old_run: Any, outputs: Path) -> None:
    folder = old_run("aa")
    run = delete_checkpoints.StoredRun.read(folder.path)
    seen = run.updated
    age(folder, 60)
    with pytest.raises(ConfigError, match="has changed"):
        delete_checkpoints.planned(run, seen, ["latest"], True)
    assert steps_of(folder) == [1, 2, 3, 4]


def test_a_failure_to_delete_is_reported(
    old_run: Any, runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_run("aa")

    def fails(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(delete_checkpoints.shutil, "rmtree", fails)
    code, _, err = runs("checkpoints", "--delete", "--yes")
    assert code == 1
    assert "gpt/aa: cannot be deleted (Input/output error)" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--older", "30"], "--older=30: should be a number and a unit"),
        (["--older", "-1d"], "--older"),
        (["--keep", "beast"], "--keep=beast: should be best, latest or steps; did you mean best?"),
        (["--keep="], "--keep=: should be best, latest or steps"),
        (["--at", "3"], "--at: chooses none to delete; --keep names the checkpoints that stay."),
    ],
)
def test_bad_options_are_rejected(old_run: Any, runs: Any, words: list[str], sentence: str) -> None:
    folder = old_run("aa")
    code, _, err = runs("checkpoints", "--delete", "--yes", *words)
    assert code == 2
    assert sentence in err
    assert steps_of(folder) == [1, 2, 3, 4]


def test_a_folder_elsewhere_is_left_since_others_may_start_from_it(
    old_run: Any, outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = old_run("aa")
    (tmp_path / "others").mkdir()
    words = ["--outputs", str(tmp_path / "others"), "checkpoints", str(folder.path)]
    assert main(words) == 0
    assert main([*words, "--delete", "--yes"]) == 2
    assert f"{folder.path}: is not in {tmp_path}/others; give the" in capsys.readouterr().err
    assert steps_of(folder) == [1, 2, 3, 4]


def test_an_empty_word_does_not_mean_the_current_folder(
    old_run: Any, runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = old_run("aa")
    monkeypatch.chdir(folder.path)
    assert runs("checkpoints", "--delete", "--yes", "")[0] == 2
    assert steps_of(folder) == [1, 2, 3, 4]


def test_a_plan_that_no_byte_confirms_is_not_carried_out(old_run: Any, runs: Any) -> None:
    folder = old_run("aa")
    for step in steps_of(folder):
        shard = folder.checkpoints / f"step-{step:08d}" / "shard-00000"
        shard.write_bytes(b"z" * 100)
    code, out, _ = runs("checkpoints", "--delete", "--yes")
    assert code == 0 and "none of its checkpoints verifies" in out
    assert steps_of(folder) == [1, 2, 3, 4]


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def calls_that_change(monkeypatch: pytest.MonkeyPatch, kill_at: int) -> None:
    """Raise `Killed` before the call number `kill_at` that changes the disk."""
    count = iter(range(10**9))
    for name in ("rename", "replace", "unlink", "rmdir", "symlink"):
        real = getattr(os, name)

        def call(*args: Any, real: Any = real, **options: Any) -> Any:
            if next(count) >= kill_at:  # every later one too: a killed process does nothing more
                raise Killed
            return real(*args, **options)

        monkeypatch.setattr(os, name, call)


def test_a_kill_at_any_call_leaves_nothing_half(old_run: Any, outputs: Path) -> None:
    folder, kills = old_run("aa"), 0
    pristine = outputs.parent / "pristine"
    shutil.copytree(outputs, pristine, symlinks=True)
    for kill_at in range(200):
        shutil.rmtree(outputs)
        shutil.copytree(pristine, outputs, symlinks=True)
        with pytest.MonkeyPatch.context() as patch:
            calls_that_change(patch, kill_at)
            with suppress(Killed):
                main(["--outputs", str(outputs), "checkpoints", "--delete", "--yes"])
                break
        kills += 1
        for step in steps_of(folder):  # each that is visible is whole
            verify(folder.checkpoints / f"step-{step:08d}")
        assert {2, 4} <= {*steps_of(folder)}
        # The next command takes a dead process's lock over.
        folder.lock_path.unlink(missing_ok=True)
        assert main(["--outputs", str(outputs), "checkpoints", "--delete", "--yes"]) == 0
        assert steps_of(folder) == [2, 4]
        assert not [*folder.checkpoints.glob(".*")]
    assert kills >= 8


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
    fork = None if given["fork_of"] is None else f"run{given['fork_of']}"
    record.data |= {"config": {"run.tag": given["tag"]}, "step": 3}
    if fork is not None and fork != folder.path.name:
        record.data["forked_from"] = {"id": fork, "name": "gpt", "step": 1}
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


def valid_steps(folder: RunFolder) -> Iterator[int]:
    for step in steps_of(folder):
        with suppress(CorruptCheckpoint):
            verify(folder.checkpoints / f"step-{step:08d}")
            yield step


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(run_states(), min_size=1, max_size=3),
    st.lists(st.sampled_from(["best", "latest", "1", "5"]), min_size=1, max_size=2),
    st.sampled_from([[], ["--older", "7d"]]),
)
def test_over_all_states_of_runs(
    tmp_path: Path, states: list[dict[str, Any]], keep: list[str], older: Any
) -> None:
    outputs = tmp_path / "outputs"
    shutil.rmtree(outputs, ignore_errors=True)
    folders = [made(outputs, index, given) for index, given in enumerate(states)]
    before = [(steps_of(folder), [*valid_steps(folder)], digests(folder)) for folder in folders]
    sources = {each["fork_of"] for index, each in enumerate(states) if each["fork_of"] != index}
    main(
        [
            "--outputs",
            str(outputs),
            "checkpoints",
            "--delete",
            "--yes",
            f"--keep={','.join(keep)}",
            *older,
        ]
    )
    for index, (folder, run, (steps, valid, files)) in enumerate(
        zip(folders, states, before, strict=True)
    ):
        assert digests(folder) == files
        left = steps_of(folder)
        is_protected = (
            run["is_held"]
            or run["tag"] is not None
            or index in sources
            or (older and run["age"] == 0)
        )
        if is_protected or not valid:
            assert left == steps
        else:
            assert [*valid_steps(folder)]
            named = {"latest": max(steps), "best": run["best"], "1": 1, "5": 5}
            asked = {named[name] for name in keep} & {*steps}
            assert asked <= {*left}
            assert len(left) <= len(asked) + 1
