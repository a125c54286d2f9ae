import itertools

import pytest

from launcher.rundir.record import RunRecord
from launcher.runs.__main__ import main
from launcher.runs.look.logs import RunWatch, growth, last_lines
from support.submitted import note_job


@pytest.fixture
def folder(make_run):
    folder = make_run("gpt", "aaaa0001")
    folder.log_path().write_bytes(b"one\ntwo\rtwo again\nthree\n\xff\n")
    folder.log_path(1).write_text("of rank 1\n")
    return folder


@pytest.fixture
def logs(outputs, capfdbinary):
    """Gives what is printed as bytes, whatever the encoding."""

    def call(*words):
        assert main(["--outputs", str(outputs), "logs", *words]) == 0
        return capfdbinary.readouterr()

    return call


def test_logs_of_ranks(logs, folder):
    assert logs("gpt") == (folder.log_path().read_bytes(), b"")
    assert logs("gpt", "--rank", "1") == (b"of rank 1\n", b"")


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("lines", [0, 1, 2, 4, 9])
def test_last_lines(tmp_path, lines, end):
    text = b"one\ntwo\rtwo\n\nfour" + end
    (tmp_path / "log").write_bytes(text)
    kept = [b"one\n", b"two\rtwo\n", b"\n", b"four" + end][4 - min(lines, 4) :]
    assert text[last_lines(tmp_path / "log", lines) :] == b"".join(kept)
    (tmp_path / "log").write_bytes(b"")
    assert last_lines(tmp_path / "log", lines) == 0


def test_follow_until_the_run_ends(start, make_run):
    folder = make_run("gpt", "aaaa0001", state="running")
    record = RunRecord(folder)
    folder.log_path().write_text("one\n")
    process = start("logs", "gpt", "-f", "-n", "1")
    assert process.stdout.readline() == b"one\n"
    with open(folder.log_path(), "a") as log:
        log.write("two\n")
    assert process.stdout.readline() == b"two\n"
    record.end_attempt("completed", end_step=10, exit_code=0)
    with open(folder.log_path(), "a") as log:
        log.write("the end\n")
    folder.lock_path.unlink()
    assert process.communicate(timeout=240)[0] == b"the end\n" and process.returncode == 0


@pytest.mark.parametrize("state", ["completed", "preempted"])
def test_a_followed_run_has_ended_once_its_process_has_left_it(make_run, state):
    """The process logs its results after it has recorded its end."""
    folder = make_run("gpt", "aaaa0001", state="running")
    record, watch = RunRecord(folder), RunWatch(folder.path)
    assert not watch.has_ended()
    record.end_attempt(state, end_step=10, exit_code=0 if state == "completed" else 143)
    assert not watch.has_ended()
    folder.lock_path.unlink()
    assert watch.has_ended()


@pytest.mark.parametrize("state", ["running", "completed", "preempted"])
def test_a_followed_run_whose_process_was_killed_has_ended(make_run, state):
    folder = make_run("gpt", "aaaa0001", state="stale")
    if state != "running":
        RunRecord(folder).end_attempt(state, end_step=10)
    assert folder.lock_path.exists() and RunWatch(folder.path).has_ended()


@pytest.mark.parametrize(
    ("queued", "of_run", "of_job"),
    [
        ("7|RUNNING|None|n1|{script}", True, False),
        ("7|COMPLETING|None|n1|{script}", True, True),
        ("", True, True),
    ],
)
def test_the_log_of_a_completed_runs_job_grows_until_the_job_ends(
    make_run, slurm, tmp_path, queued, of_run, of_job
):
    """srun forwards what a task has printed a moment later."""
    folder = make_run("gpt", "aaaa0001")
    script = str(tmp_path / "job-0.sh")
    note_job(folder, script, None, job_id="7")
    slurm(squeue=f"echo {queued.format(script=script)!r}")
    assert RunWatch(folder.path).has_ended() == of_run
    assert RunWatch(folder.path, is_job_log=True).has_ended() == of_job


def test_a_rewritten_log_is_followed(tmp_path):
    log = tmp_path / "log"
    log.write_text("a long first line\n")
    looks = itertools.count()
    pieces = growth(log, 5, lambda: next(looks) > 3, sleep=lambda seconds: log.write_text("new\n"))
    assert list(pieces) == [b"g first line\n", b"new\n"]


def test_without_a_log_of_its_own_it_is_what_slurm_wrote(make_run, runs, outputs):
    folder = make_run("gpt", "bbbb0002", state="failed")
    script = outputs / ".slurm" / "1" / "job-0.sh"
    note_job(folder, str(script), 3, job_id="12_3")
    script.parent.mkdir(parents=True)
    (script.parent / "12_3.out").write_text("slurmstepd: error: no such user\n")
    for words in ([], ["--slurm"]):
        assert runs("logs", "bbbb0002", *words) == (0, "slurmstepd: error: no such user\n", "")


@pytest.mark.parametrize("state", ["failed", "preempted"])
def test_a_run_without_a_log_gives_its_reason(make_run, runs, state):
    folder = make_run("gpt", "bbbb0002", state=state)
    if state == "failed":
        RunRecord(folder).revise("failed", reason="model.dim=7: too small.")
    else:
        RunRecord(folder).queue()
        note_job(folder, "/s/job-0.sh", job_id="7")
    why = {"failed": "failed, model.dim=7: too small.", "preempted": "waits in the queue; -f"}
    code, output, error = runs("logs", "bbbb0002")
    assert (code, output) == (2, "") and why[state] in error
