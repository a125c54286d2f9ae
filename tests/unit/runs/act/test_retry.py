"""`runs retry`, as far as it needs no cluster."""

import json
import shutil

import pytest

from launcher.checkpoint.store import CheckpointStore
from launcher.config.run_config import replace_values
from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import read_record
from launcher.slurm.causes import unrecorded_end
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.submission import FROZEN, Submission, freeze
from support.composition import composed, validate
from support.stores import save
from support.submitted import note_job


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_run_of_another_kind_is_not_submitted(make_run, runs, by_hand):
    """One that `sbatch slurm/train.sbatch` started has a frozen configuration too, but not that of
    a submission."""
    folder = make_run("gpt", "1a2b0000", state="failed")
    if by_hand:
        note_job(folder, "", job_id="7")
    code, output, error = runs("retry", "--all")
    assert (code, output) == (1, "") and error.endswith("launcher.runs resume gpt/1a2b0000\n")


@pytest.fixture(scope="module")
def configuration():
    words = ["dispatch=slurm", "dispatch.partition=p", "model=mlp", "data=digits"]
    return validate(composed(words))


@pytest.fixture
def submitted_run(make_run, slurm, configuration):
    """A failed run that was submitted from a cluster whose sbatch accepts every script."""
    folder = make_run("mlp-digits", "1a2b0000", state="failed")
    places = {"run.dir": str(folder.path), "paths.outputs": str(folder.path.parents[1])}
    config = replace_values(configuration, places)
    freeze(folder, config, None, Submission("/s/job-0.sh", job_id="7"))
    RunRecord(folder).add_failure("failed", reason="broken", exit_code=1)
    slurm(**dict.fromkeys(("squeue", "sbatch", "srun", "scontrol", "sacct"), "true"))
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def test_a_job_that_is_still_completing_is_reported(make_run, runs, slurm):
    note_job(make_run("gpt", "1a2b0000", state="failed"), "/s/job-0.sh", job_id="7")
    slurm(squeue="echo '7|COMPLETING|None|node1|/s/job-0.sh'")
    code, output, error = runs("retry", "--all")
    assert (code, output) == (1, "") and "SLURM job 7 is still completing" in error


def test_an_array_names_its_runs(make_run, runs, slurm):
    for id, job in (("0", "198_0"), ("1", "198_1"), ("9", "1980")):
        note_job(make_run("gpt", f"1a2b000{id}", state="failed"), "/s/job-0.sh", job_id=job)
    slurm(squeue="true")
    for word, count in (("job=198", 2), ("job=198_1", 1), ("job=1980", 1), ("job!=198", 1)):
        assert runs(word)[1].count("1a2b") == count, word
    assert "1a2b0001" in runs("show", "198_1")[1]
    assert runs("show", "198")[2].startswith("'198': names 2 runs")


@pytest.mark.parametrize("record", ["queued", "preempted", "stale", "failed"])
@pytest.mark.parametrize("submitted", [True, False])
def test_a_copy_of_a_run_is_not_the_run_of_the_job(
    make_run, runs, outputs, slurm, tmp_path, monkeypatch, record, submitted
):
    """Nor does it keep the copy's command from being submitted. A moved folder keeps its job."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # of the attempt
    folder = make_run("gpt", "1a2b0000", state=record)
    if record == "queued":
        RunRecord(folder).queue()
    if submitted:
        note_job(folder, "/s/job-0.sh", job_id="7")
    slurm(squeue="echo '7|PENDING|Priority||/s/job-0.sh'", scancel=f"touch {tmp_path}/cancelled")
    copy = RunFolder(tmp_path / "copies" / "gpt" / "1a2b0000")
    shutil.copytree(folder.path, copy.path, symlinks=True)
    assert (Submission.read(folder) is not None) == submitted and Submission.read(copy) is None
    (run,), (copied,) = (
        json.loads(runs("list", "--json", "--outputs", where)[1])
        for where in (outputs, tmp_path / "copies")
    )
    assert (run["job_id"], copied["job_id"]) == ("7", None)
    assert copied["state"] == ("stale" if record == "queued" else record)
    runs("cancel", "--all", "--outputs", tmp_path / "copies")
    assert not (tmp_path / "cancelled").exists()
    folder.path.rename(tmp_path / "moved")
    assert (Submission.read(RunFolder(tmp_path / "moved")) is not None) == submitted
    queue = {"7": QueuedJob("7", "PENDING", "Priority", "", "/s/job-0.sh")}
    assert not submitted or Submission.read(copy).find_in(queue) is not None, "it cannot be known"


@pytest.mark.parametrize("record", ["queued", "preempted", "stale", "failed"])
@pytest.mark.parametrize("job", ["7", "7_1"])
@pytest.mark.parametrize(
    "known", ["squeue", "sacct", "failed", "nothing", "squeue of others", "sacct of others"]
)
def test_a_job_that_was_cancelled_while_it_waited(
    make_run, runs, slurm, monkeypatch, record, job, known
):
    """SLURM knows of it when the run could not record it, or has forgotten a task that has not
    started; `retry` does not submit it, and keeps that. A cancelled job of another cluster, or from
    after a reset of ids, may have the same id."""
    monkeypatch.setenv("SLURM_JOB_ID", job)  # of the attempt
    folder = make_run("gpt", "1a2b0000", state=record)
    if record == "queued":
        RunRecord(folder).queue()
    note_job(folder, "/s/job-0.sh", job_id=job)
    script = "/other.sh" if "others" in known else "/s/job-0.sh"
    in_squeue = f"7_9|PENDING|/s\\n{job}|CANCELLED|{script}\\n" if "squeue" in known else ""
    by = f"CANCELLED by 0|sbatch --parsable {script}"
    cancelled = f"7_[0,1-3%%2]|{by}\\n{job}|{by}\\n"
    listed = cancelled if "sacct" in known else ""
    listed = f"{job}|FAILED|\\n" if known == "failed" else listed
    if record != "queued":  # it has started
        folder.logs.mkdir(exist_ok=True)
        (folder.logs / f"slurm-{job}.log").touch()
    only = 'case "$*" in *--states=all*)'
    slurm(squeue=f'{only} printf "{in_squeue}";; esac', sacct=f'printf "{listed}"')
    is_forgotten = (known, record) == ("nothing", "queued")
    is_cancelled = record != "failed" and (known in ("squeue", "sacct") or is_forgotten)
    kept = record if record in ("failed", "preempted") else "stale"
    assert f" {'cancelled' if is_cancelled else kept} " in runs()[1]
    if is_cancelled:
        before = folder.record_path.read_bytes()
        assert "its SLURM job was cancelled" in runs("retry", "--all", "--dry-run")[2]
        assert folder.record_path.read_bytes() == before
        code, output, error = runs("retry", "--all")
        assert (code, output) == (0, "") and "retry 1a2b0000 state=cancelled\n" in error
        assert read_record(folder.record_path)["state"] == "cancelled"


ENDS = ("BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")


@pytest.mark.parametrize("record", ["queued", "preempted", "stale"])
@pytest.mark.parametrize("state", ENDS)
@pytest.mark.parametrize("known", ["squeue", "sacct"])
def test_an_end_that_only_slurm_knows_is_listed_with_slurms_state(
    make_run, runs, slurm, monkeypatch, record, state, known
):
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # of the attempt
    folder = make_run("gpt", "1a2b0000", state=record)
    if record == "queued":
        RunRecord(folder).queue()
    note_job(folder, "/s/job-0.sh", job_id="7")
    lines = f"7|{state}|/s/job-0.sh"
    only = 'case "$*" in *--states=all*)'
    in_squeue = lines if known == "squeue" else ""
    slurm(squeue=f'{only} echo "{in_squeue}";; esac', sacct=f'echo "{lines}"')
    (run,) = json.loads(runs("list", "--json")[1])
    expected = unrecorded_end(state, "running" if record == "stale" else record)
    assert run["state"] == (expected or record)
    assert (run["reason"] == f"SLURM ended job 7: {state}") == (expected == "failed")


def test_an_end_that_only_slurm_knows_is_recorded_before_the_next_attempt(
    submitted_run, runs, slurm, configuration
):
    RunRecord(submitted_run).queue()
    only = 'case "$*" in *--states=all*)'
    slurm(squeue=f'{only} echo "7|NODE_FAIL|/s/job-0.sh";; esac', sbatch="echo 8")
    assert runs("retry", "--all")[0] == 0
    record = read_record(submitted_run.record_path)
    assert (record["state"], record["attempts"][-1]["outcome"]) == ("queued", "failed")
    assert record["attempts"][-1]["reason"] == "SLURM ended job 7: NODE_FAIL"
    assert Submission.read(submitted_run).job_id == "8"


def test_a_failure_whose_job_is_still_in_the_queue_says_so(make_run, runs, slurm):
    """SLURM notices a lost node after minutes, and then requeues the job."""
    folder = make_run("gpt", "1a2b0000", state="failed")
    note_job(folder, "/s/job-0.sh", job_id="7")
    RunRecord(folder).add_failure("failed", reason="connection reset", exit_code=1)
    for state, is_said in (("RUNNING", True), ("COMPLETING", False)):
        slurm(squeue=f"echo '7|{state}|None|node1|/s/job-0.sh'")
        (run,) = json.loads(runs("list", "--json")[1])
        assert run["state"] == "failed"
        assert ("SLURM job 7 is still running" in run["reason"]) is is_said


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("optimizer.lr=1", "--set=optimizer.lr=1: "),
        ("dispatch.mem", "--set=dispatch.mem: is not an override"),
        ("dispatch.dry_run=true", "--set=dispatch.dry_run=true: "),
        ("dispatch.exclude=a,b", "--set=dispatch.exclude=a,b: is several values; as one text: "),
        ("dispatch.memory=1", "dispatch.memory=1: SlurmDispatch takes no memory"),
        ("dispatch.nodes=x", "dispatch.nodes='x': should be "),
        ("dispatch.gpus_per_node=-1", "dispatch.gpus_per_node=-1: should be "),
        ("dispatch.tasks_per_node=7", "data.batch_size="),
    ],
)
def test_a_change_that_cannot_be_made_is_a_sentence(submitted_run, runs, text, key):
    before = contents(submitted_run)
    code, output, error = runs("retry", "--all", "--set", text)
    assert (code, output) == (2, "") and error.startswith(key), error
    assert contents(submitted_run) == before


def test_a_dry_run_shows_the_runs_and_the_changed_script(submitted_run, runs):
    before = contents(submitted_run)
    changes = ("mem=64G", "sbatch.nodelist=n1", "partition=null")
    words = [word for change in changes for word in ("--set", f"dispatch.{change}")]
    code, output, error = runs("retry", "--all", "--dry-run", *words)
    first, *lines = output.splitlines()
    assert (code, error, first) == (0, "", "# mlp-digits/1a2b0000")
    flags = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}
    assert {"mem=64G", "nodelist=n1"} <= flags
    assert not any(flag.startswith("partition") for flag in flags)
    assert contents(submitted_run) == before


def test_values_of_the_environment_are_resolved_at_each_retry(submitted_run, runs, monkeypatch):
    frozen_with(submitted_run, "config.dispatch.cpus_per_task", "${oc.decode:${oc.env:NUM_CPUS}}")
    retry = ("retry", "1a2b", "--trust", "--dry-run")
    changes = ([], ["--set", "dispatch.mem=64G"])
    monkeypatch.setenv("NUM_CPUS", "3")
    for change in changes:
        code, output, error = runs(*retry, *change)
        assert code == 0 and "#SBATCH --cpus-per-task=3\n" in output, error
    monkeypatch.delenv("NUM_CPUS")
    for change in changes:
        code, output, error = runs(*retry, *change)
        assert (code, output, error.count("\n")) == (2, "", 1) and "no variable NUM_CPUS" in error
    assert runs(*retry, "--set", "dispatch.cpus_per_task=2")[0] == 0


def test_run_resume_holds_for_the_first_submission(submitted_run, runs, slurm):
    frozen_with(submitted_run, "config.run.resume", "never")
    frozen_with(submitted_run, "config.hooks.checkpointing.load", "must")
    save(CheckpointStore(submitted_run.checkpoints), 5)
    slurm(sbatch="echo 8")
    code, output, error = runs("retry", "1a2b", "--trust")
    assert code == 0 and "SLURM job 8" in output, error
    config = json.loads((submitted_run.path / FROZEN).read_text())["config"]
    assert config["run"]["resume"] == config["hooks"]["checkpointing"]["load"] == "auto"


def frozen_with(folder, path, value):
    saved = json.loads((folder.path / FROZEN).read_bytes())
    *parents, last = path.split(".")
    node = saved
    for key in parents:
        node = node[key]
    node[last] = value
    (folder.path / FROZEN).write_text(json.dumps(saved))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("config.dispatch._target_", "launcher.runs.act.repeat_command.os.system"),
        ("snapshot", "/tmp"),
        ("cwd", "/"),
    ],
)
def test_code_that_only_the_submission_names(submitted_run, runs, path, value):
    frozen_with(submitted_run, path, value)
    before = contents(submitted_run)
    code, output, error = runs("retry", "--all")
    assert (code, output) == (2, "") and "only the stored configuration" in error, error
    assert contents(submitted_run) == before


def test_retry_trusts_what_its_command_line_names(submitted_run, runs):
    frozen_with(submitted_run, "config.dispatch.setup", ["module load x"])
    retry = ("retry", "--all", "--dry-run")
    for words, is_loaded in (
        (["--trust"], True),
        (["--set", "dispatch.setup=[module load x]"], True),
        (["--set", "dispatch.setup=null"], False),
    ):
        code, output, error = runs(*retry, *words)
        assert code == 0 and ("module load x" in output) == is_loaded, error


def test_a_record_that_cannot_be_written_is_reported(make_run, runs, slurm):
    folder = make_run("gpt", "1a2b0000", state="failed")
    RunRecord(folder).queue()
    note_job(folder, "/s/job-0.sh", job_id="7")
    slurm(squeue="echo '7|PENDING|Priority||/s/job-0.sh'", scancel="true")
    (folder.path / ".run.json.tmp").mkdir()  # a failing write, even for root
    code, output, error = runs("cancel", "--all")
    assert code == 1 and "gpt/1a2b0000: SLURM job 7 cancelled" in output
    assert error.startswith("gpt/1a2b0000: run.json cannot be written (")


def test_all_runs_of_a_job_that_was_cancelled_while_it_waited(make_run, runs, slurm):
    folders = [make_run("gpt", f"1a2b000{n}", state="preempted") for n in range(3)]
    for folder in folders:
        RunRecord(folder).queue()
        note_job(folder, "/s/job-0.sh", job_id="7")
    slurm(squeue="true")
    code, output, error = runs("retry", "--all")
    assert (code, output) == (0, "") and error.count("its SLURM job was cancelled") == 3
    assert {read_record(each.record_path)["state"] for each in folders} == {"cancelled"}
