"""What a submission writes, and what it takes back."""

import json
from pathlib import Path

import pytest
import yaml

from launcher.errors import ConfigError
from launcher.run.folder import RunFolder
from launcher.run.record import RunRecord
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.submission import (
    freeze,
    frozen,
    job_note,
    load_frozen,
    new_submission,
    rolled_back_on_refusal,
    why_skipped,
    write_job_notes,
    write_runs,
)

HYDRA = {"overrides": {"task": ["seed=1"]}, "job": {"num": "${oc.env:NOT_SET}"}}


def config(path: Path) -> dict:
    return {"run": {"dir": str(path), "id": path.name, "name": path.parent.name}, "seed": 1}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return freeze(config(tmp_path / "outputs" / "gpt" / "1a2b"), HYDRA)


def test_a_frozen_configuration_is_read_back(folder):
    assert frozen(folder) == (config(folder.path), HYDRA)
    settings, hydra = load_frozen(folder)
    assert settings.seed == 1 and hydra is not None and hydra.hydra.overrides.task == ["seed=1"]
    assert yaml.safe_load((folder.hydra / "overrides.yaml").read_text()) == ["seed=1"]
    assert RunRecord(folder).state == "queued"


def test_why_a_run_is_not_submitted(folder):
    assert why_skipped(folder, {}) is None
    assert write_job_notes([folder], "12", is_array=True, script=Path("/s")) == ["12_0"]
    assert job_note(folder)["job_id"] == "12_0"
    queue = {"12_0": QueuedJob("12_0", "PENDING", "Priority", "")}
    assert why_skipped(folder, queue) == "in the queue as job 12_0 (pending)"
    record = RunRecord(folder)
    record.begin_attempt(start_step=0, max_steps=1, world_size=1, strategy="none")
    record.end_attempt("completed", end_step=1, exit_code=0)
    assert why_skipped(folder, queue) == "already completed"


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"'])
def test_a_damaged_job_note_is_none(folder, text):
    (folder.path / "slurm.json").write_text(text)
    assert job_note(folder) == {}


def test_a_refused_submission_leaves_nothing(tmp_path):
    outputs = tmp_path / "outputs"
    path = outputs / "gpt" / "1a2b"
    submission = new_submission(outputs)
    with pytest.raises(ConfigError), rolled_back_on_refusal([RunFolder(path)], submission):
        freeze(config(path), HYDRA)
        raise ConfigError("SLURM refused it.")
    assert list(outputs.iterdir()) == []


def test_a_refused_submission_restores_what_was_there(folder, tmp_path):
    record = RunRecord(folder)
    record.begin_attempt(start_step=0, max_steps=2, world_size=1, strategy="none")
    record.end_attempt("failed", end_step=1, exit_code=1)
    before = folder.record_path.read_bytes()
    accepted, refused = RunFolder(tmp_path / "outputs" / "gpt" / "3c4d"), folder
    submission = new_submission(tmp_path / "outputs")
    with pytest.raises(ConfigError), rolled_back_on_refusal([accepted, refused], submission) as settled:
        freeze(config(accepted.path), HYDRA)
        settled.append(accepted)
        freeze(config(refused.path), HYDRA)
        raise ConfigError("SLURM refused the second array.")
    assert refused.record_path.read_bytes() == before
    assert RunRecord(accepted).state == "queued" and submission.is_dir()


def test_an_array_lists_its_runs_in_order(folder, tmp_path):
    others = [RunFolder(tmp_path / name) for name in ("b", "a")]
    first, second = (write_runs(tmp_path, runs, part) for part, runs in enumerate(([folder], others)))
    assert first.name == "runs.txt" and second.name == "runs-1.txt"
    assert second.read_text().splitlines() == [str(tmp_path / "b"), str(tmp_path / "a")]
    assert json.loads((folder.path / "submission.json").read_text())["config"]["seed"] == 1
