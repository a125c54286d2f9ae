import json
import os
import time
from dataclasses import asdict, replace

import pytest

from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import Holder
from launcher.rundir.record import RunRecord
from launcher.runs.slurm_jobs import join_queue
from launcher.runs.stored_run import StoredRun
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.submission import Submission, freeze
from support.submitted import note_job


@pytest.mark.parametrize(
    ("job_state", "script", "submitted", "state"),
    [
        ("SUSPENDED", "/s/job-0.sh", "/s/job-0.sh", "running"),
        ("PENDING", "/s/job-0.sh", "/s/job-0.sh", "queued"),
        ("RUNNING", "/of/another/program.sh", "/s/job-0.sh", "stale"),
        ("RUNNING", "/by/hand/train.sbatch", "", "running"),
    ],
)
def test_a_run_without_a_live_process_is_as_its_job(
    make_run, change, job_state, script, submitted, state
):
    """The processes of a suspended job give no sign of life. Another cluster has the same ids."""
    folder = make_run("gpt", "1a2b0000", state="stale")
    note_job(folder, submitted, job_id="7")
    (attempt,) = json.loads(folder.record_path.read_text())["attempts"]
    change(folder, attempts=[attempt | {"slurm_job_id": "7"}])
    run = StoredRun.read(folder.path)
    join_queue([run], {"7": QueuedJob("7", job_state, "None", "n", script)})
    assert run.state == state


def test_a_run_that_has_not_started_is_as_it_was_submitted(outputs):
    folder = RunFolder(outputs / "gpt" / "1a2b0000")
    config = {"run": {"dir": str(folder.path)}, "seed": 3}
    sources = [{"path": "launcher.conf", "provider": "main"}]
    sources.append({"path": "/my/conf", "provider": "command-line"})
    runtime = {"choices": {"model": "gpt"}, "config_sources": sources}
    hydra = {"overrides": {"task": ["seed=3"]}, "runtime": runtime}
    freeze(folder, config, hydra, Submission("/s/job-0.sh"))
    for state in ("queued", "failed"):
        run = StoredRun.read(folder.path)
        assert (run.record["state"], run.text("seed"), run.config) == (state, "3", config)
        assert (run.overrides, run.choices) == (["seed=3"], {"model": "gpt"})
        assert run.record["config_dir"] == "/my/conf"
        RunRecord(folder).revise("failed", reason="before it began")


@pytest.mark.parametrize(
    ("silence", "job", "asked", "state"),
    [
        pytest.param(10, None, True, "running", id="ended"),
        pytest.param(20, None, True, "stale", id="ended, silent"),
        pytest.param(20, "RUNNING", True, "running", id="in the queue"),
        pytest.param(20, None, False, "running", id="SLURM is silent"),
        pytest.param(40, None, False, "stale", id="all are silent"),
    ],
)
def test_a_process_elsewhere_shows_only_by_its_heartbeat(
    make_run, change, silence, job, asked, state
):
    """Once its job has ended, it is waited for half as long."""
    folder = make_run("gpt", "1a2b0000", state="stale")
    (attempt,) = json.loads(folder.record_path.read_text())["attempts"]
    change(folder, attempts=[attempt | {"slurm_job_id": "7"}])
    holder = replace(Holder.current(), host="node1", slurm_job_id="7")
    folder.lock_path.write_text(json.dumps(asdict(holder)))
    at = time.time() - silence
    os.utime(folder.lock_path, (at, at))
    run = StoredRun.read(folder.path)
    jobs = {} if job is None else {"7": QueuedJob("7", job, "None", "node1", "")}
    join_queue([run], jobs if asked else None)
    assert run.state == state
