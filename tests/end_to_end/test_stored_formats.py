"""Files of each format number, as they were written: read, listed and resumed by this version.

A change of a format changes its number (`FORMAT_VERSION`, `VERSION`), adds it to
`READABLE_VERSIONS`, and adds a folder to tests/stored: `python -m support.store_format`, in the
folder tests.
"""

import json
import os
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from launcher.checkpoint.durable_files import FileEntry
from launcher.checkpoint.manifest import VERSION, Manifest, verify
from launcher.rundir.record_format import (
    ATTEMPT_KEYS,
    FORMAT_VERSION,
    READABLE_VERSIONS,
    RECORD_FIELDS,
    TrialData,
    read_record,
)
from launcher.runs.trials import Goal, Trial, find_trials
from support.paths import ROOT
from support.python import run

STORED = ROOT / "tests" / "stored"
NAME = Path("mlp-synthetic") / "2b4e3f4f3773"
STUDY = "toy-0123abcd"
CHANGED = "its fields have changed, so its number must; see the beginning of this file"


def stored(version: int) -> Path:
    return STORED / f"format-{version}"


def outputs_with(version: int, folder: Path) -> Path:
    shutil.copytree(stored(version), folder / NAME, symlinks=True)
    return folder


def test_each_number_has_stored_files():
    numbers = {int(path.name.removeprefix("format-")) for path in STORED.iterdir()}
    assert numbers == {*READABLE_VERSIONS} and max(numbers) == FORMAT_VERSION
    assert VERSION in numbers


def test_the_fields_of_a_format_change_with_its_number():
    newest: Any = read_record(stored(FORMAT_VERSION) / "run.json")
    assert newest.keys() == RECORD_FIELDS.keys(), CHANGED
    assert newest["attempts"][0].keys() == {*ATTEMPT_KEYS}, CHANGED
    assert newest["trials"][0].keys() == TrialData.__annotations__.keys(), CHANGED
    checkpoint = stored(VERSION) / "checkpoints" / "step-00000002"
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    assert manifest.keys() - {"xxh3"} == {each.name for each in fields(Manifest)}, CHANGED
    entries = {key for entry in manifest["files"] for key in entry}
    assert entries == {each.name for each in fields(FileEntry)}, CHANGED


@pytest.mark.parametrize("version", READABLE_VERSIONS)
def test_a_stored_run_is_read(version, tmp_path):
    outputs = outputs_with(version, tmp_path)
    record = read_record(outputs / NAME / "run.json")
    assert (record["state"], record["step"], len(record["attempts"])) == ("paused", 2, 1)
    assert verify(outputs / NAME / "checkpoints" / "step-00000002").step == 2
    invalid = outputs / "studies" / STUDY / "invalid" / "trial-0007.json"
    invalid.parent.mkdir(parents=True)
    text = (stored(version) / "trial.json").read_text()
    invalid.write_text(text.replace('"number": 6', '"number": 7'))
    goal = Goal("val/loss", "minimize")
    found = [Trial.of(data, of_run, goal) for data, of_run in find_trials(outputs, STUDY).values()]
    assert [(trial.number, trial.status) for trial in found] == [(6, "open"), (7, "invalid")]


@pytest.mark.parametrize("version", READABLE_VERSIONS)
def test_a_stored_run_is_resumed(version, tmp_path):
    outputs = outputs_with(version, tmp_path / "outputs")
    words = read_record(outputs / NAME / "run.json")["overrides"] or []
    again = [word for word in words if not word.startswith("trainer.pause_at")]
    done = run("-m", "launcher", *again, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Completed at step 4" in done.stdout
    names = {*os.listdir(outputs / NAME / "checkpoints")}
    assert names == {"best", "latest", "step-00000002", "step-00000004"}
    assert read_record(outputs / NAME / "run.json")["attempts"][1]["start_step"] == 2


@pytest.mark.parametrize("name", ["run.json", "trial.json"])
def test_a_trial_of_another_version_is_said_to_be_one(name, tmp_path):
    """It is not asked for again."""
    outputs = outputs_with(FORMAT_VERSION, tmp_path)
    changed = json.loads((outputs / NAME / name).read_bytes()) | {"format_version": 99}
    target = outputs / NAME / name
    if name == "trial.json":
        target = outputs / "studies" / STUDY / "invalid" / "trial-0006.json"
        target.parent.mkdir(parents=True)
    target.write_text(json.dumps(changed))
    (outputs / "studies" / STUDY).mkdir(parents=True, exist_ok=True)
    words = ("-m", "launcher.runs", "report", "studies/toy-0123abcd", "--outputs", str(outputs))
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2 and "written by another version of Launcher" in done.stderr
