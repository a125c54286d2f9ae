"""The flags and the script for sbatch."""

import json
import os
import shlex
import sys

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config.compose.composer import compose
from launcher.config.compose.resolve import as_yaml
from launcher.config.construct import construct
from launcher.config.run_config import from_stored, read_tree, resolve_node
from launcher.config.secrets import escape
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.slurm.journal import Journal
from launcher.slurm.sbatch import GUARD
from launcher.slurm.submission import Submission, freeze, read_frozen
from support.composition import validate
from support.job_scripts import run_bash
from support.scripted_slurm import ScriptedSlurm

KILLED = "exit 140"
AT_THE_END_OF_THE_GRACE = "kill -TERM $PPID; sleep 0.5; exit 7"


@pytest.mark.parametrize(
    ("answer", "command", "started", "requeues"),
    [
        ("preempted, with a grace", KILLED, False, True),
        ("preempted, with a grace", KILLED, True, False),  # the run decides
        ("preempted, at the end of its grace, CANCEL", AT_THE_END_OF_THE_GRACE, False, True),
        ("preempted, at the end of its grace, CANCEL", AT_THE_END_OF_THE_GRACE, True, False),
        ("preempted without a grace, REQUEUE", AT_THE_END_OF_THE_GRACE, False, False),
        ("preempted, then cancelled in its grace", AT_THE_END_OF_THE_GRACE, False, False),
        ("cancelled", AT_THE_END_OF_THE_GRACE, False, False),
        ("killed by hand", KILLED, False, False),
    ],
)
def test_the_script_requeues_a_preempted_job_whose_run_has_not_started(
    tmp_path, slurm, answer, command, started, requeues
):
    slurm.answer(answer)
    folder = RunFolder(tmp_path / "run").create()
    Journal(folder, "5").start(0, 0)  # of an earlier job
    journal, later = folder.path / "restarts.json", folder.path / "later"
    if started:
        before = journal.read_bytes()
        Journal(folder, "6").start(0, 0)
        journal.rename(later)
        journal.write_bytes(before)
        command = f"mv {later} {journal}; {command}"
    script = f"set -e; __launcher_run={folder.path}; source {GUARD}; guarded bash -c"
    done = run_bash(f"{script} {shlex.quote(command)}")
    assert done.returncode == int(command[-3:].split()[-1]), done.stderr
    assert ("requeue 6" in slurm.calls) == requeues, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("away", ["down", "busy"])
def test_the_script_asks_a_controller_that_is_away_again(tmp_path, slurm, monkeypatch, away):
    """`down`: no question is answered at first; `busy`: the first request to requeue is not."""
    slurm.answer("preempted, with a grace")
    marker = tmp_path / "asked"
    command = "show" if away == "down" else "requeue"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "scontrol").write_text(
        f"""#!/bin/bash
if [[ $1 == {command} && ! -e {marker} ]]; then
    touch {marker}
    echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
    exit 1
fi
exec {slurm.folder}/bin/scontrol "$@"
"""
    )
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    done = run_bash(f"__launcher_run={tmp_path}; source {GUARD}; guarded bash -c '{KILLED}'")
    assert marker.exists() and "requeue 6" in slurm.calls, done.stdout + done.stderr


RUN = """
import os, sys
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
from launcher.rundir.record import RunRecord
from launcher.slurm.journal import Journal

folder = RunFolder(sys.argv[1])
Journal(folder, "6").start(0, 0)
RunLock(folder).acquire()
record = RunRecord(folder)
record.begin_attempt(start_step=0, max_steps=9, world_size=1, strategy="none")
{end}
{exits}
"""
PAUSED = "record.end_attempt('paused', end_step=4, exit_code=0)"
ELSEWHERE = "record.attempts[-1]['slurm_job_id'] = '7'; record._write()"
KILLED_BY_9 = "os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    ("end", "exits", "code", "reason"),
    [
        ("", "os._exit(0)", 1, "exit code 0 in the middle of the run"),
        (PAUSED, "os._exit(0)", 0, None),
        (ELSEWHERE, KILLED_BY_9, 137, None),
        ("", "", 1, "with exit code 0, before the run started"),
    ],
)
def test_a_run_that_ends_without_recording_it_has_failed(tmp_path, slurm, end, exits, code, reason):
    """By os._exit or SIGKILL, which no handler sees. Not the run of another job, to which this one
    has left it. A program that does not start it, as a wrong `dispatch.prefix`, may end well."""
    folder = RunFolder(tmp_path / "run")
    freeze(folder, {"run": {"dir": str(folder.path)}}, None, None)
    (tmp_path / "train.py").write_text(RUN.format(end=end, exits=exits) if exits else "")
    done = run_bash(
        f"__launcher_run={folder.path} __launcher_pythons=({sys.executable}); source {GUARD};"
        f" guarded {sys.executable} {tmp_path}/train.py {folder.path}"
    )
    record = json.loads(folder.record_path.read_text())
    assert done.returncode == code, done.stderr
    if reason is None:
        assert record["state"] in ("paused", "running") and not record["attempts"][-1]["reason"]
    else:
        assert record["state"] == "failed" and reason in record["attempts"][-1]["reason"]
        assert not folder.lock_path.exists(), "it would look alive from other nodes"


SHELL = [
    "export HF_HOME=${HOME}/hf",
    "export X=${VAR:-default}",
    "[[ -n ${X:-} ]]",
    "echo ${a[@]} ${#a} ${X%/*} ${X/a/b}",
    "echo '${X}' \"${Y}\" $Z $(( 1 + 2 ))",
    r"printf '%s\n' \\${HOME}",
]


def test_setup_lines_are_written_with_escaped_variables(tmp_path):
    """They go from a command line to the job's script, and once more through `retry`, which reads
    the frozen ones. Flags of sbatch need no plus."""
    written = tmp_path / "conf" / "dispatch" / "ours.yaml"
    written.parent.mkdir(parents=True)
    settings = {"defaults": ["slurm", "_self_"], "setup": [*map(escape, SHELL)]}
    written.write_text(yaml.safe_dump(settings))
    overrides = ["dispatch=ours", "dispatch.sbatch.nodelist=n1", "model=mlp", "data=digits"]
    plain = validate(compose([*overrides, f"paths.outputs={tmp_path}"], tmp_path / "conf"))
    assert plain["dispatch"]["sbatch"] == {"nodelist": "n1"}
    assert construct(resolve_node(plain, "dispatch")).setup == SHELL
    folder = RunFolder(tmp_path / "run")
    freeze(folder, plain, None, Submission("/s/job-0.sh"))
    config = from_stored(*read_frozen(folder))
    assert config.plain["dispatch"]["setup"] == SHELL
    assert from_stored(read_tree(as_yaml(config.of_the_run))).plain["dispatch"]["setup"] == SHELL


def test_an_unescaped_variable_is_a_sentence_with_the_escaped_form():
    line = SHELL[1]
    overrides = ["dispatch=slurm", f'dispatch.setup=["{line}"]', "model=mlp", "data=digits"]
    with pytest.raises(ConfigError) as raised:
        validate(compose(overrides))
    assert escape(line) in str(raised.value)


def test_the_steps_of_consecutive_starts_differ_in_number(tmp_path, monkeypatch):
    """srun of a frozen node that wakes ends the step that has its number."""
    numbers = []
    for restarts in range(4):
        slurm = ScriptedSlurm(tmp_path / str(restarts))
        with monkeypatch.context() as patch:
            slurm.install(patch, restarts)
            command = "guarded srun --ntasks=2 --nodelist=node1 true"
            run_bash(f"__launcher_run={tmp_path}; source {GUARD}; {command}").check_returncode()
        *empty, run = slurm.steps
        assert set(empty) <= {"empty"} and run == "2 on node1"
        numbers.append(len(empty))
    assert numbers == [0, 1, 2, 3]


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 6))
@settings(max_examples=10)
def test_usable_nodes_are_the_most_whose_ranks_divide_the_lanes(allocated, ranks, exponent):
    lanes = 2**exponent
    script = f"__launcher_run=/tmp; source {GUARD}; trap - EXIT TERM; usable"
    done = run_bash(f"{script} {allocated} {ranks} {lanes}; usable {allocated} {ranks} 0")
    fits = [n for n in range(1, allocated + 1) if lanes % (n * ranks) == 0]
    assert [*map(int, done.stdout.split())] == [max(fits, default=1), allocated]


def test_setup_lines_do_not_disturb_the_script(tmp_path):
    """They may use any variable that a person would use."""
    folder = RunFolder(tmp_path / "run").create()
    mine = "run=/a before=/b job=/c runs=/d pythons=/e guarded=/f"
    script = f"__launcher_run={folder.path}; source {GUARD}; {mine}; guarded bash -c 'exit 7'"
    done = run_bash(f"__launcher_pythons=(echo); {script}")
    assert done.returncode == 7 and f"not_started {folder.path} 7 bash" in done.stdout, (
        done.stdout + done.stderr
    )
