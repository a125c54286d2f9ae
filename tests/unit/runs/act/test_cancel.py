"""`runs cancel`, as far as it needs no cluster."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from launcher.process.process_id import process_start
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import Holder
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import read_record
from launcher.runs.__main__ import main
from launcher.slurm.job_mark import CANCEL
from support.submitted import note_job


def test_without_slurm_a_job_is_not_cancelled(make_run, runs, slurm):
    """Its processes are on a node: to stop them there is no advice to give."""
    folder = make_run("gpt", "1a2b0000", state="running")
    lock = folder.lock_path.read_text().replace('"host": "', '"host": "node-of-')
    folder.lock_path.write_text(lock)
    note_job(folder, "/s/job-0.sh", job_id="7")
    slurm(squeue="echo 'slurm_load_jobs error' >&2; exit 1")
    code, output, error = runs("cancel", "--all")
    assert (code, output) == (1, "") and "SLURM does not answer" in error


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "SUSPENDED"])
def test_a_run_that_cannot_record_its_end_is_cancelled_at_once(make_run, runs, slurm, state):
    """Its process has left already, or has not started: it cannot record the end."""
    folder = make_run("gpt", "1a2b0000", state="running" if state == "SUSPENDED" else "preempted")
    note_job(folder, "/s/job-0.sh", job_id="7")
    slurm(squeue=f"echo '7|{state}|None|node1|/s/job-0.sh'", scancel="true")
    assert runs("cancel", "--all") == (0, "gpt/1a2b0000: SLURM job 7 cancelled\n", "")
    assert read_record(folder.record_path)["state"] == "cancelled"


def test_a_rejected_job_does_not_keep_others_from_being_cancelled(make_run, runs, slurm):
    """SLURM answers so for a list with another user's job."""
    folders = {n: make_run("gpt", f"1a2b000{n}", state="preempted") for n in (7, 8)}
    for number, folder in folders.items():
        note_job(folder, "/s/job-0.sh", job_id=str(number))
    error = "scancel: error: Kill job error on job id 8: Access/permission denied"
    slurm(
        squeue=r"printf '%s|PENDING|None||/s/job-0.sh\n' 7 8",
        scancel=f'case " $* " in *" 8 "*) echo \'{error}\' >&2; exit 210;; esac',
    )
    code, output, error = runs("cancel", "--all")
    assert (code, output) == (1, "gpt/1a2b0007: SLURM job 7 cancelled\n")
    assert error.startswith("gpt/1a2b0008: SLURM job 8: ") and "permission denied" in error
    for number, state in ((7, "cancelled"), (8, "preempted")):
        assert read_record(folders[number].record_path)["state"] == state
        assert CANCEL.is_of(RunFolder(folders[number].path), str(number)) == (number == 7)


def test_the_process_of_another_user_is_reported(make_run, outputs, capfd):
    folder = make_run("gpt", "1a2b0000", state="running")
    init = replace(Holder.current(), pid=1, started=process_start(1))
    folder.lock_path.write_text(json.dumps(asdict(init)))
    if not (child := os.fork()):
        os.chdir(outputs)  # the folders above are not open to others
        if os.getuid() == 0:
            os.setresuid(65534, 65534, 65534)
        os._exit(main(["--outputs", ".", "cancel", "--all"]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert "process 1 belongs to root" in capfd.readouterr().err


@pytest.mark.parametrize("has_open", ["nothing", "a file of it", "the folder"])
def test_only_a_process_that_works_on_the_run_is_asked_to_stop(make_run, runs, has_open):
    """A lock of a foreign folder may name any process of this user."""
    folder = make_run("gpt", "1a2b0000", state="running")
    opened = {"nothing": "/dev/null", "a file of it": folder.record_path}.get(has_open, folder.path)
    code = "import os, sys; os.open(sys.argv[1], 0); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, opened], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        named = replace(Holder.current(), pid=process.pid, started=process_start(process.pid))
        folder.lock_path.write_text(json.dumps(asdict(named)))
        code, output, error = runs("cancel", "1a2b0000")
        process.stdin.close()
    is_its = has_open == "the folder"
    assert code == int(not is_its) and str(process.pid) in (output if is_its else error)
    assert is_its or f"remove {folder.lock_path}" in error
    assert (process.returncode == -signal.SIGTERM) == is_its


def test_a_job_of_another_script_is_not_cancelled(make_run, runs, slurm, tmp_path):
    """A foreign folder may name any job: the id of a note counts only with the script that SLURM
    shows for it."""
    note_job(make_run("gpt", "1a2b0007", state="queued"), "/s/job-0.sh", job_id="7")
    slurm(
        squeue="echo '7|PENDING|None||/home/somebody/train.sh'", scancel=f"touch {tmp_path}/called"
    )
    runs("cancel", "--all")
    assert not (tmp_path / "called").exists()


def test_a_run_is_not_cancelled_together_with_others_of_its_job(
    make_run, runs, slurm, tmp_path, monkeypatch
):
    """They are a sweep inside one job, which is cancelled as a whole. Ended runs do not count."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # of the attempts
    for number, state in enumerate(("preempted", "preempted", "completed", "failed")):
        make_run("gpt", f"1a2b000{number}", state=state)
    queue = "echo '7|PENDING|BeginTime||/home/me/sweep.sbatch'"
    slurm(squeue=queue, scancel=f"echo $@ >>{tmp_path}/cancelled")
    code, output, error = runs("cancel", "1a2b0000")
    assert (code, output) == (1, "") and not (tmp_path / "cancelled").exists()
    assert "SLURM job 7 has other runs, which would end too (gpt/1a2b0001)" in error
    code, output, error = runs("cancel", "job=7")
    assert (code, error) == (0, "") and output.count("SLURM job 7 cancelled") == 2
    assert (tmp_path / "cancelled").read_text() == "7\n"


@pytest.mark.parametrize("state", ["queued", "running", "preempted"])
def test_a_mark_that_cannot_be_written_is_reported(make_run, runs, slurm, state):
    """The disk is full, for example."""
    folder = make_run("gpt", "1a2b0000", state="preempted" if state == "queued" else state)
    if state == "queued":
        RunRecord(folder).queue()
    note_job(folder, "/s/job-0.sh", job_id="7")
    (folder.path / ".cancel").mkdir()
    slurm(squeue="echo '7|RUNNING|None|n1|/s/job-0.sh'", scancel="true")
    error = runs("cancel", "1a2b0000")[2]
    assert "the mark of its cancellation cannot be written (Is a directory)" in error
