"""Calls of SLURM's commands."""

import os

import pytest

from launcher.process.process_id import RANK_VARIABLES
from launcher.slurm import scheduler


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "squeue").touch(0o755)
    return tmp_path / "squeue"


def test_a_user_s_defaults_hide_no_job(squeue, monkeypatch):
    """`SQUEUE_STATES=PD` would make each running job look as if it were gone, and be submitted
    again."""
    answer = 'echo "12|RUNNING|None|n1|/a script.sh"'
    squeue.write_text(f'#!/bin/sh\n[ -z "$SQUEUE_STATES$SQUEUE_PARTITION" ] && {answer}\n')
    for name in ("SQUEUE_STATES", "SQUEUE_PARTITION"):
        monkeypatch.setenv(name, "other")
    job = scheduler.QueuedJob("12", "RUNNING", "None", "n1", "/a script.sh")
    assert scheduler.queue() == {"12": job}


def test_the_jobs_of_those_who_share_an_output_folder_are_seen(squeue, tmp_path, monkeypatch):
    """A run that somebody else has submitted must not be submitted again."""
    squeue.write_text('#!/bin/sh\necho "12|PENDING|None||$3"\n')
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner)
    assert scheduler.queue([tmp_path, tmp_path / "gone"])["12"].script == "--me"
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert scheduler.queue([tmp_path])["12"].script == f"--user={owner},{owner + 1}"


@pytest.mark.parametrize("text", ["7", "7;lab", "Hello, user 1!\\n7", "7;lab\\nSee 12."])
def test_a_cluster_s_own_sbatch_may_print_more_than_the_id(squeue, text):
    sbatch = squeue.rename(squeue.with_name("sbatch"))
    sbatch.write_text(f"#!/bin/sh\nprintf '{text}\\n'\n")
    assert scheduler.submit(sbatch) == "7"
    sbatch.write_text("#!/bin/sh\necho Hello\n")
    with pytest.raises(scheduler.SchedulerError, match="printed no job id: Hello"):
        scheduler.submit(sbatch)


def test_a_submission_hides_the_rank_of_its_own_process(monkeypatch):
    for name in (*RANK_VARIABLES, "SBATCH_PARTITION"):
        monkeypatch.setenv(name, "1")
    with scheduler.clean_environment():
        assert not {*RANK_VARIABLES, "SBATCH_PARTITION"} & set(os.environ)
    assert set(RANK_VARIABLES) <= set(os.environ)
