"""`runs retry`, as far as it needs no cluster."""

import json
import os

import pytest

from launcher.run.record import RunRecord
from launcher.slurm.scheduler import _tasks
from support.submitted import note_job


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_run_of_another_kind_is_not_submitted(make_run, runs, by_hand):
    """One that `sbatch slurm/train.sbatch` started has a frozen configuration too, but not that of a submission."""
    folder = make_run("gpt", "1a2b0000", state="failed")
    if by_hand:
        note_job(folder, "", job_id="7")
    code, output, error = runs("retry", "--all")
    assert (code, output) == (1, "")
    assert error == (
        "gpt/1a2b0000: was not submitted with dispatch=slurm; resume it with: python -m launcher.runs resume 1a2b0000\n"
    )


def squeue(tmp_path, monkeypatch, lines):
    (tmp_path / "squeue").write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


def test_a_job_that_is_still_completing_is_reported(make_run, runs, tmp_path, monkeypatch):
    note_job(make_run("gpt", "1a2b0000", state="failed"), "/s/job-0.sh", job_id="7")
    squeue(tmp_path, monkeypatch, r"7|COMPLETING|None|node1|\n")
    code, output, error = runs("retry", "--all")
    assert (code, output) == (1, "")
    assert error == "gpt/1a2b0000: SLURM job 7 is still completing; retry it once it has left\n"


def test_an_array_names_its_runs(make_run, runs, tmp_path, monkeypatch):
    for task in (0, 1):
        note_job(make_run("gpt", f"1a2b000{task}", state="failed"), "/s/job-0.sh", job_id=f"198_{task}")
    note_job(make_run("gpt", "1a2b0009", state="failed"), "/s/job-0.sh", job_id="1980")
    squeue(tmp_path, monkeypatch, "")
    for word, count in (("job=198", 2), ("job=198_1", 1), ("job=1980", 1), ("job!=198", 1)):
        assert runs(word)[1].count("1a2b") == count, word
    assert "1a2b0001" in runs("show", "198_1")[1]
    assert runs("show", "198")[2].startswith("'198': names 2 runs")


def test_a_job_that_is_just_starting_waits_for_nothing(make_run, runs, tmp_path, monkeypatch):
    note_job(make_run("gpt", "1a2b0000", state="preempted"), "/s/job-0.sh", job_id="7")
    squeue(tmp_path, monkeypatch, r"7|PENDING|None||\n")
    assert "None" not in runs()[1]


@pytest.mark.parametrize("record", ["queued", "preempted", "stale", "failed"])
@pytest.mark.parametrize("job", ["7", "7_1"])
@pytest.mark.parametrize("known", ["squeue", "sacct", "no"])
def test_a_job_that_was_cancelled_while_it_waited(make_run, runs, tmp_path, monkeypatch, record, job, known):
    """SLURM knows of it when the run could not record it; `retry` does not submit it, and keeps that."""
    monkeypatch.setenv("SLURM_JOB_ID", job)  # of the attempt
    folder = make_run("gpt", "1a2b0000", state=record)
    if record == "queued":
        RunRecord(folder).queue()
    note_job(folder, "/s/job-0.sh", job_id=job)
    in_squeue = f"{job}\\n" if known == "squeue" else ""
    listed = f"7_[0-3]|CANCELLED by 0\\n{job}|CANCELLED by 0\\n" if known == "sacct" else f"{job}|FAILED\\n"
    squeue(tmp_path, monkeypatch, "")
    only = 'case "$*" in *--states=CANCELLED*)'
    (tmp_path / "squeue").write_text(f'#!/bin/sh\n{only} printf "{in_squeue}";; esac\n')
    (tmp_path / "sacct").write_text(f'#!/bin/sh\nprintf "{listed}"\n')
    (tmp_path / "sacct").chmod(0o755)
    is_cancelled = known != "no" and record != "failed"
    expected = "cancelled" if is_cancelled else {"failed": "failed", "preempted": "preempted"}.get(record, "stale")
    assert f" {expected} " in runs()[1]
    if is_cancelled:
        code, output, error = runs("retry", "--all")
        assert (code, output) == (0, "")
        assert "gpt/1a2b0000: its SLURM job was cancelled; to submit it: retry 1a2b0000 state=cancelled\n" in error
        assert json.loads(folder.record_path.read_text())["state"] == "cancelled"


def test_the_tasks_of_an_array_that_have_not_started_are_one_line_of_sacct():
    assert list(_tasks("2_[0-2,7%2]")) == ["2_0", "2_1", "2_2", "2_7"]
    assert list(_tasks("2_3")) == ["2_3"] and list(_tasks("2")) == ["2"]
