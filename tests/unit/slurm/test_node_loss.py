"""A job that loses nodes: what its script does, and what run.json says."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
from launcher.rundir.record import RunRecord
from launcher.slurm.node_loss import record_loss
from launcher.slurm.size import GUARD, NODE_LOSS
from support.scripted_slurm import ScriptedSlurm


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    slurm = ScriptedSlurm(tmp_path / "slurm")
    slurm.install(monkeypatch)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node1,node2,node3")
    return slurm


@pytest.fixture
def folder(tmp_path, slurm):
    folder = RunFolder(tmp_path / "gpt" / "1a2b").create()
    RunRecord(folder).begin_attempt(start_step=0, max_steps=9, world_size=4, strategy="ddp")
    return folder


def run_script(folder, slurm, least, spares, *starts, lanes=0):
    """Let each start of the ranks do one of the commands; the script's exit code."""
    ranks = (
        f"commands=(: {' '.join(map(repr, starts))}); eval ${{commands[$(wc -l"
        f" <{slurm.folder}/steps)]}}"
    )
    lines = [
        f"__launcher_run={folder.path}; __launcher_pythons=({sys.executable})",
        f"source {GUARD}; source {NODE_LOSS}",
        f'on_nodes_left {least} {spares} 2 {lanes} bash -c "$0"',
    ]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines), ranks], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def lost(slurm, *nodes, then):
    """The ranks on these nodes are gone, and srun waits for them; or it ends."""
    files = " ".join(str(slurm.folder / f"lost-{node}") for node in nodes)
    return f"touch {files}; : >$LAUNCHER_RANK_ENDED; {then}"


HANGS, SUCCEEDS = "exec sleep 60", "exit 0"


@pytest.mark.parametrize("then", [HANGS, "exit 1"])
def test_the_run_starts_again_on_a_spare_and_then_on_fewer_nodes(folder, slurm, then):
    starts = [lost(slurm, "node2", then=then), lost(slurm, "node3", then=then), SUCCEEDS]
    code, output = run_script(folder, slurm, 1, 1, *starts)
    assert code == 0, output
    assert slurm.steps == ["4 on node1,node2", "4 on node1,node3", "2 on node1"]
    assert slurm.watchers == ["node3"]
    record = RunRecord(folder)
    assert (record.state, record.attempt.outcome) == ("preempted", "killed")
    assert (
        record.attempt.reason == "lost node3: restarts on 1 node" and "requeue 6" not in slurm.calls
    )
    assert not [*folder.path.glob(".rank-ended*"), *folder.path.glob(".alive*")]


def test_with_lanes_the_run_uses_what_divides_them(folder, slurm):
    """8 lanes, two ranks a node."""
    output = run_script(folder, slurm, 1, 0, lost(slurm, "node2", then=HANGS), "exit 0", lanes=8)[1]
    assert slurm.steps == ["4 on node1,node2", "4 on node1,node3"], output
    assert output.count("3 nodes allocated, 2 used: trainer.lanes=8 ") == 1


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 6))
@settings(max_examples=10)
def test_usable_nodes_are_the_most_whose_ranks_divide_the_lanes(allocated, ranks, exponent):
    lanes = 2**exponent
    script = f"__launcher_run=/tmp; source {GUARD}; trap - EXIT TERM; usable"
    command = f"{script} {allocated} {ranks} {lanes}; usable {allocated} {ranks} 0"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    fits = [n for n in range(1, allocated + 1) if lanes % (n * ranks) == 0]
    assert [*map(int, done.stdout.split())] == [max(fits, default=1), allocated]


def test_a_job_with_too_few_nodes_is_requeued(folder, slurm):
    code, output = run_script(folder, slurm, 2, 0, lost(slurm, "node2", "node3", then=HANGS))
    assert (code, slurm.steps) == (1, ["6 on node1,node2,node3"]), output
    assert (
        RunRecord(folder).attempt.reason
        == "lost node2, node3: requeued, since 1 of 2 nodes are left"
    )
    assert "requeue 6" in slurm.calls


@pytest.mark.parametrize(
    ("answer", "nodes"),
    [
        ("killed by hand", []),  # the job runs and all nodes answer: the run has crashed
        ("killed by hand", ["node1", "node2"]),  # this script's own node cannot start steps either
        ("preempted, with a grace", ["node2"]),
        ("cancelled", ["node2"]),
    ],
)
def test_failure_without_a_node_loss_ends_the_job(folder, slurm, answer, nodes):
    slurm.answer(answer)
    command = lost(slurm, *nodes, then="exit 3") if nodes else ": >$LAUNCHER_RANK_ENDED; exit 3"
    code, output = run_script(folder, slurm, 1, 0, command)
    assert (code, len(slurm.steps)) == (3, 1), output
    assert (
        RunRecord(folder).attempt.reason is None or "lost" not in RunRecord(folder).attempt.reason
    )


@pytest.fixture
def watched(folder, slurm, monkeypatch):
    """Actions of a watcher of the first node until it ends, or for ten checks. Its output is in the
    job's log."""
    monkeypatch.setenv("SLURMD_NODENAME", "node3")
    alive = folder.path / ".alive-6"

    def watch(while_watching=":"):
        lines = [
            f"source {GUARD}; trap - EXIT TERM; source {NODE_LOSS}",
            f"alive={alive}; __launcher_run={folder.path}; __launcher_job=",
            f"__launcher_pythons=({sys.executable})",
            f"looks=0; pause() {{ ((++looks <= 10)) && {{ {while_watching}; }}; }}",
            "watch_first_node node1",
        ]
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120
        )
        return done.stdout + done.stderr + (folder.path / "logs" / "slurm-6.log").read_text()

    alive.write_text("1\n")
    (folder.path / "logs").mkdir(exist_ok=True)
    return watch


def lose(slurm, *nodes):
    for node in nodes:
        (slurm.folder / f"lost-{node}").touch()


def test_a_job_whose_first_node_is_lost_is_requeued_by_its_watcher(folder, slurm, watched):
    lose(slurm, "node1")
    output = watched()
    assert slurm.calls.count("requeue 6") == 1, output
    assert "SLURM job 6 has lost node1, on which its script ran: requeueing it" in output
    assert RunRecord(folder).attempt.reason == "lost node1: requeued"


def test_the_loss_of_the_first_node_is_recorded_before_the_next_start_can_begin(
    folder, slurm, watched
):
    lose(slurm, "node1")
    copy = folder.path / "as-requeued.json"
    copying = f'[[ $1 != requeue ]] || cp "{folder.record_path}" "{copy}"'
    output = watched(f'scontrol() {{ {copying}; command scontrol "$@"; }}')
    attempts = json.loads(copy.read_text())["attempts"]
    assert [attempt["reason"] for attempt in attempts] == ["lost node1: requeued"], output


@pytest.mark.parametrize(
    ("lost", "answer", "while_watching"),
    [
        # The script is there: it deals with lost nodes.
        (["node1"], "killed by hand", 'echo $looks >"$alive"'),
        ([], "killed by hand", ":"),  # the file system is slow
        (["node1", "node3"], "killed by hand", ":"),  # it is the watcher's node that is cut off
        (["node1"], "cancelled", ":"),
        (["node1"], "preempted, with a grace", ":"),
    ],
)
def test_a_watcher_leaves_other_jobs_alone(folder, slurm, watched, lost, answer, while_watching):
    lose(slurm, *lost)
    slurm.answer(answer)
    output = watched(while_watching)
    assert "requeue 6" not in slurm.calls, output
    assert RunRecord(folder).attempt.reason is None


def test_the_loss_is_recorded_once_the_ranks_have_ended(folder, slurm):
    lock = RunLock(folder)
    lock.acquire()
    assert not record_loss(folder, "restarts on 1 node", ["node2"], sleep=lambda seconds: None)
    assert RunRecord(folder).attempt.outcome is None
    assert record_loss(
        folder, "restarts on 1 node", ["node2"], sleep=lambda seconds: lock.release()
    )
    assert RunRecord(folder).attempt.reason == "lost node2: restarts on 1 node"
