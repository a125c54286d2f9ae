"""The cache of a listing never changes what is listed."""

import json
import os
import time

import pytest
import yaml

from launcher.runs import cache
from launcher.runs.cache import RunCache
from launcher.runs.find import find_runs
from launcher.runs.run_files import FILES
from launcher.runs.stored_run import StoredRun
from launcher.slurm.submission import FROZEN
from support.submitted import note_job

COUNT = 6


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "WORTH", 3)


@pytest.fixture
def folders(make_run):
    """Runs that ended a minute ago."""
    made = []
    for number in range(COUNT):
        config = {"seed": number, "run": {"id": f"{number:08x}", "not_identity": ["paths", "device"]}}
        folder = make_run("a", f"{number:08x}", config=config, choices={"model": "mlp"}, overrides=[f"seed={number}"])
        folder.metrics_path.write_text(f'{{"step": 1, "train/loss": {number}, "val/loss": "nan"}}\n')
        settle(folder)
        made.append(folder)
    return made


def settle(folder, seconds=60.0):
    then = time.time() - seconds
    for name in FILES:
        if (folder.path / name).exists():
            os.utime(folder.path / name, (then, then))


def known(run):
    """All that a listing shows or filters by."""
    facts = run.record, dict(run.values), dict(run.choices), run.overrides, run.loss_curve, run.metrics, run.job_id
    return (*facts, run.state, run.not_identity, len(run.values), bool(run.values), run.values.get("seed"))


def parsed(monkeypatch):
    """The runs that are read from their files from now on."""
    read, names = StoredRun.read.__func__, []
    monkeypatch.setattr(
        StoredRun, "read", classmethod(lambda cls, path: names.append(os.path.basename(path)) or read(cls, path))
    )
    return names


def test_a_second_listing_reads_no_run_again(folders, outputs, monkeypatch):
    first = {run.label: known(run) for run in find_runs(outputs)}
    names = parsed(monkeypatch)
    second = {run.label: known(run) for run in find_runs(outputs)}
    assert names == [] and second == first
    assert all(known(StoredRun.read(folder.path)) == first[f"a/{folder.path.name}"] for folder in folders)


@pytest.mark.parametrize("name", [name for name in FILES if name != FROZEN])
def test_a_file_that_has_changed_is_read_again(folders, outputs, monkeypatch, name):
    find_runs(outputs)
    file = folders[3].path / name
    file.write_text(file.read_text())  # the same size
    names = parsed(monkeypatch)
    find_runs(outputs)
    assert names == [folders[3].path.name]


def test_a_changed_value_a_new_job_and_a_removed_run_are_seen(folders, outputs):
    find_runs(outputs)
    (folders[0].hydra / "config.yaml").write_text(yaml.safe_dump({"seed": 99}))
    note_job(folders[1], "/s/job-0.sh", job_id="17")
    (folders[2].record_path).unlink()
    runs = {run.id: run for run in find_runs(outputs)}
    assert dict(runs["00000000"].values) == {"seed": "99"}
    assert runs["00000001"].job_id == "17"
    assert "00000002" not in runs and len(runs) == COUNT - 1


def test_what_runs_or_has_just_changed_is_not_kept(folders, make_run, outputs, monkeypatch):
    make_run("b", "running", state="running")
    settle(make_run("b", "stale", state="stale"))
    monkeypatch.setattr(cache, "SETTLED", 30.0)
    settle(folders[0], seconds=0.1)
    find_runs(outputs)
    names = parsed(monkeypatch)
    find_runs(outputs)
    assert sorted(names) == ["00000000", "running", "stale"]


def test_a_file_that_changes_while_a_run_is_read_is_read_again(folders, outputs, monkeypatch):
    read = StoredRun.read.__func__

    def changing(cls, path):
        run = read(cls, path)
        if run.id == "00000005":  # run.json and the metrics, one after it was read, one before
            run.files.look("metrics.jsonl")
            folders[5].metrics_path.write_text('{"step": 2, "val/loss": 7}\n')
            folders[5].record_path.write_text(folders[5].record_path.read_text().replace('"step": 10', '"step": 9'))
            settle(folders[5], seconds=30.0)
        return run

    with monkeypatch.context() as patch:
        patch.setattr(StoredRun, "read", classmethod(changing))
        find_runs(outputs)
    run = {run.id: run for run in find_runs(outputs)}["00000005"]
    assert run.record["step"] == 9 and run.metrics["val/loss"] == (7, 2)


@pytest.mark.parametrize("name", [".hydra/config.yaml", "metrics.jsonl"])
def test_a_file_that_could_not_be_read_is_not_taken_for_missing(folders, outputs, monkeypatch, name):
    file = folders[4].path / name
    text = file.read_text()
    file.unlink()
    file.mkdir()
    settle(folders[4])
    run = {run.id: run for run in find_runs(outputs)}["00000004"]
    assert not run.values if name.endswith(".yaml") else not run.metrics and not run.loss_curve
    names = parsed(monkeypatch)
    find_runs(outputs)
    assert names == ["00000004"]
    file.rmdir()
    file.write_text(text)
    run = {run.id: run for run in find_runs(outputs)}["00000004"]
    assert run.values["seed"] == "4" and run.metrics["train/loss"] == (4, 1)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 0}', '{"version": 1, "outputs": 3, "runs": 4}'])
def test_a_damaged_cache_is_ignored(folders, outputs, content):
    find_runs(outputs)
    (file,) = (RunCache(outputs).path.parent).iterdir()
    file.write_text(content)
    assert len(find_runs(outputs)) == COUNT
    assert len(file.read_text()) > 1000, "it is written again"


def test_entries_of_another_version_are_ignored(folders, outputs):
    find_runs(outputs)
    data = json.loads(RunCache(outputs).path.read_text())
    for entry in data["runs"].values():
        entry["job"] = entry.pop("note")
    RunCache(outputs).path.write_text(json.dumps(data))
    assert len(find_runs(outputs)) == COUNT


def test_a_cache_that_cannot_be_written(folders, outputs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(find_runs(outputs)) == COUNT


def test_few_runs_are_not_cached(make_run, outputs):
    settle(make_run("a", "00000001"))
    find_runs(outputs)
    assert not RunCache(outputs).path.parent.exists()
