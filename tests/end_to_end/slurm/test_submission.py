"""Disturbances while `dispatch=slurm` submits: signals, a second command, SLURM's rejections."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from support import python
from support.lab import MAX_WAIT_S, QUICK, experiment, job_of, run_folders, states, wait_for
from support.paths import ROOT
from support.runner import record

HELD = "+dispatch.sbatch.hold=true"
SLOW_SBATCH = """#!/bin/bash
echo $$ >>{folder}/called
if [[ " {rejected} " == *" $(wc -l <{folder}/called) "* ]]; then
    echo "sbatch: error: {error}" >&2
    exit 1
fi
until [[ -e {folder}/go ]]; do sleep 0.1; done
exec {real} "$@"
"""


class Sbatch:
    """An `sbatch` that waits for `go` before it calls the real one, and rejects some calls."""

    def __init__(self, lab, folder, error="", rejected=()):
        self.lab, self.folder = lab, folder
        self.path = f"{folder}{os.pathsep}{lab.environment['PATH']}"
        folder.mkdir()
        real, numbers = shutil.which("sbatch"), " ".join(map(str, rejected))
        text = SLOW_SBATCH.format(folder=folder, real=real, rejected=numbers, error=error)
        (folder / "sbatch").write_text(text)
        (folder / "sbatch").chmod(0o755)

    def start(self, *words):
        environment = {**self.lab.environment, "PATH": self.path}
        return self.lab.begin("launcher", *words, env=environment, stderr=subprocess.PIPE)

    def calls(self):
        called = self.folder / "called"
        return called.read_text().count("\n") if called.exists() else 0

    def go(self):
        (self.folder / "go").touch()


@pytest.fixture
def slow(plain_cluster, tmp_path):
    """A cluster, a folder of outputs, and an `sbatch` that waits."""
    return plain_cluster, tmp_path / "outputs", Sbatch(plain_cluster, tmp_path / "bin")


def jobs(lab, outputs):
    """The jobs in SLURM's queue that were submitted from a folder of outputs."""
    lines = lab.run("squeue", "--noheader", "--format=%i|%o").splitlines()
    return [line.partition("|")[0].strip() for line in lines if f"|{outputs}/" in line]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=lambda signum: signum.name)
def test_a_signal_during_sbatch_loses_no_job(slow, signum):
    lab, outputs, sbatch = slow
    words = [*experiment(outputs), *QUICK, "dispatch=slurm", HELD]
    process = sbatch.start(*words)
    wait_for(sbatch.calls, "sbatch to be called")
    if signum == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, signum)  # as a terminal sends it: sbatch is in the group
    sbatch.go()
    output, errors = process.communicate(timeout=MAX_WAIT_S)
    assert "Traceback" not in errors, errors
    assert process.returncode == (-signum if signum == signal.SIGKILL else 128 + signum), (
        output + errors
    )
    (job,) = wait_for(lambda: jobs(lab, outputs), "the job to be in the queue")
    (run,) = states(lab, outputs).values()
    assert (run["state"], run["job_id"], run["waits_for"]) == ("queued", job, "JobHeldUser")

    again = lab.launcher(*words)
    assert (
        f"in the queue as job {job}" in again.stdout and "0 submitted, 1 skipped" in again.stdout
    ), again.stdout
    if signum == signal.SIGINT:
        lab.run("scancel", job)
        return
    assert lab.runs("cancel", outputs, "--all").returncode == 0 and jobs(lab, outputs) == []
    assert [run["state"] for run in states(lab, outputs).values()] == ["cancelled"]
    assert lab.runs("retry", outputs, "state=cancelled").returncode == 0
    assert len(jobs(lab, outputs)) == 1
    assert lab.runs("cancel", outputs, "--all").returncode == 0


def test_of_two_commands_at_once_one_submits(slow):
    lab, outputs, sbatch = slow
    words = [*experiment(outputs), *QUICK, "dispatch=slurm", HELD]
    both = [sbatch.start(*words)]
    wait_for(sbatch.calls, "sbatch to be called")
    both.append(sbatch.start(*words))
    assert "is submitting runs" in both[1].stderr.readline()
    sbatch.go()
    outputs_of_both = [process.communicate(timeout=MAX_WAIT_S)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert "1 submitted" in outputs_of_both[0] and "0 submitted, 1 skipped" in outputs_of_both[1]
    assert len(jobs(lab, outputs)) == 1
    assert lab.runs("cancel", outputs, "--all").returncode == 0
    assert not (outputs / ".slurm" / "run.lock").exists()


def test_a_job_whose_submission_was_repeated_leaves(slow):
    """sbatch survives its killed command, and is slower than the command that is run again."""
    lab, outputs, sbatch = slow
    words = [*experiment(outputs, steps=2), *QUICK, "dispatch=slurm", HELD]
    killed = sbatch.start(*words)
    wait_for(sbatch.calls, "sbatch to be called")
    killed.kill()
    killed.communicate()
    again = lab.launcher(*words)
    assert "1 submitted" in again.stdout, again.stdout + again.stderr
    sbatch.go()
    wait_for(lambda: len(jobs(lab, outputs)) == 2, "the job of the killed command")
    (run,) = states(lab, outputs).values()
    (stray,) = set(jobs(lab, outputs)) - {run["job_id"]}
    lab.run("scontrol", "release", stray)
    assert lab.wait_until_ended(stray) == "COMPLETED"
    (folder,) = run_folders(outputs)
    assert "has been submitted again" in (folder / "logs" / f"slurm-{stray}.log").read_text()
    assert record(outputs)["state"] == "queued"
    lab.run("scancel", run["job_id"])


def test_a_rejected_array_leaves_those_before_it(plain_cluster, tmp_path):
    lab, outputs = plain_cluster, tmp_path / "outputs"  # its MaxArraySize allows two tasks
    sbatch = Sbatch(lab, tmp_path / "bin", "too many", rejected=(2,))
    sbatch.go()
    words = [*experiment(outputs), *QUICK, "dispatch=slurm", HELD, "-m", "seed=range(3)"]
    process = sbatch.start(*words)
    output, errors = process.communicate(timeout=MAX_WAIT_S)
    assert process.returncode == 2
    assert "dispatch=slurm: too many" in errors
    assert "Traceback" not in errors
    assert "2 submitted as SLURM job " in output, output
    assert [run["state"] for run in states(lab, outputs).values()] == ["queued"] * 2
    assert len(run_folders(outputs)) == 2
    again = lab.launcher(*words)
    assert "1 submitted" in again.stdout and "2 skipped" in again.stdout, (
        again.stdout + again.stderr
    )
    assert lab.runs("cancel", outputs, "--all").returncode == 0


def test_more_jobs_than_the_limit_are_submitted_as_room_comes(cluster, tmp_path):
    manage = ("sacctmgr", "--immediate")
    cluster.run(*manage, "add", "qos", "few", "MaxSubmitJobsPerUser=2")
    cluster.run(*manage, "modify", "user", "root", "set", "qos+=few")
    sweep = ["dispatch=slurm", "dispatch.qos=few", "-m", "seed=0,1,2,3"]
    command = [*experiment(tmp_path, steps=20), *QUICK, *sweep]
    first = cluster.launcher(*command, "dispatch.sbatch.begin=now+1hour")
    assert first.returncode == 0, first.stderr
    assert "2 submitted as SLURM job" in first.stdout
    assert "2 not submitted yet, since SLURM has no room (QOSMaxSubmitJob" in first.stdout
    folders = run_folders(tmp_path)
    assert len(folders) == 2, "nothing is written for the others"
    none = cluster.launcher(*command)
    assert none.returncode == 2 and "QOSMaxSubmitJobPerUserLimit: 2 runs wait" in none.stderr
    (job,) = {job_of(folder).partition("_")[0] for folder in folders}
    cluster.run("scancel", job)
    busy = "Unable to contact slurm controller (connect failure)"
    sbatch = Sbatch(cluster, tmp_path / "bin", busy, rejected=(3, 4))  # once two are accepted
    sbatch.go()
    rest = cluster.launcher(*command, "dispatch.wait=true", PATH=sbatch.path)
    assert rest.returncode == 0, rest.stderr
    assert "not submitted yet, since SLURM does not answer" in rest.stdout
    assert "connect failure" in rest.stderr and "Trying again later" in rest.stderr
    assert sbatch.calls() > 4
    assert {run["state"] for run in states(cluster, tmp_path).values()} == {"completed"}
    assert len(run_folders(tmp_path)) == 4


def test_a_wait_lasts_while_other_people_fill_the_limit(cluster, tmp_path):
    """They do so before the first run, and again after it."""
    manage = ("sacctmgr", "--immediate")
    cluster.run(*manage, "add", "qos", "shared", "GrpSubmitJobs=2")
    cluster.run(*manage, "add", "account", "others")
    cluster.run(*manage, "add", "user", "nobody", "account=others")
    for user in ("root", "nobody"):
        cluster.run(*manage, "modify", "user", user, "set", "qos+=shared")
    theirs = "sbatch --parsable --uid=nobody --qos=shared --chdir=/ -o /dev/null --wrap"

    def submit():
        return cluster.run(*theirs.split(), "sleep 1000").strip()

    first, second = submit(), submit()
    sbatch = Sbatch(cluster, tmp_path / "bin")
    sbatch.go()
    sweep = ["dispatch=slurm", "dispatch.qos=shared", "dispatch.wait=true", "-m", "seed=1,2"]
    outputs = tmp_path / "outputs"
    # A run lasts 20 s, so that the limit is lowered before its end.
    process = sbatch.start(*experiment(outputs, steps=40), *sweep)
    wait_for(lambda: sbatch.calls() >= 4, "the command to try again")
    assert process.poll() is None and not jobs(cluster, outputs)
    cluster.run("scancel", first)
    wait_for(lambda: jobs(cluster, outputs), "the first run to be submitted")
    # The other job of that user has the only place then.
    cluster.run(*manage, "modify", "qos", "shared", "set", "GrpSubmitJobs=1")
    wait_for(lambda: not jobs(cluster, outputs), "the first run to end")
    calls = sbatch.calls()
    wait_for(lambda: sbatch.calls() > calls + 1, "the command to try again")
    assert process.poll() is None and not jobs(cluster, outputs)
    cluster.run("scancel", second)
    output, errors = process.communicate(timeout=MAX_WAIT_S)
    assert process.returncode == 0, output + errors
    assert "2 not submitted yet, since SLURM has no room (QOSGrpSubmitJobsLimit)" in output
    assert [run["state"] for run in states(cluster, outputs).values()] == ["completed"] * 2


def test_a_job_that_slurm_may_have_is_named(plain_cluster, tmp_path):
    """It has accepted the job, and neither sbatch nor squeue answers."""
    lab, outputs, folder = plain_cluster, tmp_path / "outputs", tmp_path / "bin"
    folder.mkdir()
    lost = 'echo "error: Socket timed out on send/recv operation" >&2; exit 1'
    scripts = {"sbatch": f'{shutil.which("sbatch")} "$@" >{folder}/id; {lost}', "squeue": lost}
    squeue = f'[ -e {folder}/id ] && {{ {lost}; }}; exec {shutil.which("squeue")} "$@"'
    scripts["squeue"] = squeue
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    words = [*experiment(outputs), *QUICK, "dispatch=slurm", HELD]
    done = lab.launcher(*words, PATH=f"{folder}{os.pathsep}{lab.environment['PATH']}")
    assert done.returncode == 2
    assert (
        "Socket timed out" in done.stderr and "SLURM may have the job all the same" in done.stderr
    )
    lab.run("scancel", (folder / "id").read_text().strip())


BROKEN = {
    "a setup line fails": (
        ["dispatch.setup=['echo preparing','exit 3']"],
        "'exit 3' ended the job with exit code 3",
    ),
    "no module command": (["dispatch.setup=[module load cuda/12.4]"], "module: command not found"),
    "no interpreter": (["dispatch.python=/no/such/python"], "/no/such/python"),
    "an empty PATH": (["dispatch.setup=['export PATH=']"], "srun: "),
    "srun rejects": (["dispatch.srun=[--no-such-flag]"], "--no-such-flag"),
}


def test_job_that_fails_before_python_is_recorded(plain_cluster, tmp_path):
    lab = plain_cluster
    submitted = {}
    for name, (overrides, _) in BROKEN.items():
        outputs = tmp_path / f"100%j {name}"  # a pattern of SLURM's, and spaces
        submitted[name] = outputs, lab.submit(outputs, *overrides, f"paths.outputs='{outputs}'")
    for name, (outputs, job) in submitted.items():
        assert lab.wait_until_ended(job) == "FAILED"
        (folder,) = run_folders(outputs)
        log = (folder / "logs" / f"slurm-{job}.log").read_text()
        run = record(outputs)
        assert run["state"] == "failed" and run["attempts"][-1]["slurm_job_id"] == job, (name, log)
        reason = run["attempts"][-1]["reason"]
        assert BROKEN[name][1] in reason and "before the run started" in reason, (name, reason)
        assert (outputs / ".slurm").exists() and list((outputs / ".slurm").glob(f"*/{job}.out"))
    shown = lab.runs("logs", submitted["a setup line fails"][0], "mlp-digits")
    assert shown.stdout == "preparing\n", shown.stdout + shown.stderr


PYTHON = """
import json, sys
import launcher
from launcher.errors import ConfigError

words = json.loads(sys.argv[1])
run = launcher.compose(*words)
jobs = [run.submit(), run.submit()]
sweep = launcher.sweep([*words, "dispatch=slurm", "seed=1,2"])
several = sweep.submit()
try:
    launcher.compose(*words, "seed=3", "dispatch=slurm", "dispatch.partition=nowhere").submit()
except ConfigError as error:
    rejected = str(error)
print(json.dumps([run.state, jobs, several, rejected]))
"""


def test_python_submits(cluster, tmp_path):
    words = [*experiment(tmp_path), "dispatch=slurm", HELD]
    done = python.run(
        "-c", PYTHON, json.dumps(words), env=cluster.environment, cwd=ROOT, check=True
    )
    state, (first, again), (one, other), rejected = json.loads(done.stdout.splitlines()[-1])
    assert (state, again) == ("queued", first)
    array, _, task = one.partition("_")
    assert (task, other) == ("0", f"{array}_1") and array != first
    assert "invalid partition specified: nowhere" in rejected and len(run_folders(tmp_path)) == 3
    listed = {job.partition("_")[0] for job in jobs(cluster, tmp_path)}
    assert listed == {first, array}
    assert cluster.runs("cancel", tmp_path, "--all").returncode == 0
    assert {run["state"] for run in states(cluster, tmp_path).values()} == {"cancelled"}
