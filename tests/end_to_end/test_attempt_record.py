"""One thread ends an attempt, although two may want to: the main thread after its save, and the
forced exit."""

import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from launcher.rundir.folder import RunFolder
from launcher.rundir.reproduction import CODE, ENVIRONMENT
from support import python
from support.lab import experiment, run_folders, steps_done
from support.paths import PYTHONPATH, ROOT
from support.scripted_slurm import ScriptedSlurm
from support.waiting import wait_for

MAIN_FIRST = ("its end is being recorded", "its end is recorded")
FORCED_FIRST = (
    "it begins",
    "its end is being recorded, forced",
    "the cause is asked for, forced",
    "the job is being requeued, forced",
    "the job is left",
)
REASONS = {
    "preempted without a grace, CANCEL": "preempted, requeued",
    "preempted without a grace, REQUEUE": "requeued by SLURM",
}
CASES = [
    *(
        (point, "preempted without a grace, CANCEL")
        for point in ("its begin is being recorded", MAIN_FIRST[0], *FORCED_FIRST)
    ),
    # The same races up to the requeue, which SLURM has made already.
    *(
        (point, "preempted without a grace, REQUEUE")
        for point in ("the cause is asked for", MAIN_FIRST[1], FORCED_FIRST[2])
    ),
]
Ended = tuple[CompletedProcess[str], dict[str, Any], dict[str, Any], list[str]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """All of them, a few at once, since they mostly wait."""
    prepared = [prepare(tmp_path_factory.mktemp("run"), answer) for _, answer in CASES]

    def end(case: tuple[str, str], place: tuple[RunFolder, ScriptedSlurm, dict[str, str]]) -> Ended:
        folder, slurm, environment = place
        words = ("-m", "support.ending", str(folder.path), case[0], str(slurm.folder / "calls"))
        done = python.run(*words, env=environment)
        record, restarts = (
            json.loads((folder.path / name).read_text()) for name in ("run.json", "restarts.json")
        )
        return done, record, restarts, slurm.calls

    with ThreadPoolExecutor(6) as threads:
        return dict(zip(CASES, threads.map(end, CASES, prepared), strict=True))


def prepare(place: Path, answer: str) -> tuple[RunFolder, ScriptedSlurm, dict[str, str]]:
    folder, slurm = RunFolder(place / "gpt" / "1a2b").create(), ScriptedSlurm(place / "slurm")
    with pytest.MonkeyPatch.context() as patch:
        slurm.install(patch)
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    slurm.answer("killed by hand", answer)
    slurm.slow_down(0.1)
    return folder, slurm, environment


@pytest.mark.parametrize(("point", "answer"), CASES)
def test_a_save_that_ends_during_a_forced_exit_does_not_end_it(ended, point, answer):
    done, record, restarts, calls = ended[point, answer]
    was_forced = point != "the cause is asked for"
    assert done.returncode == (1 if was_forced else 143), done.stderr
    assert "Traceback" not in done.stderr and ("forced exit" in done.stderr) == was_forced
    assert calls.count("requeue 6") == (not answer.endswith("REQUEUE"))
    causes = [each["cause"] for each in restarts["6"]["requeues"]]
    assert causes == [REASONS[answer].split()[0].rstrip(",")]
    (attempt,) = record["attempts"]
    ended_as = record["state"], attempt["outcome"], attempt["signal"]
    assert ended_as == ("preempted", "preempted", "SIGTERM")
    assert attempt["reason"].partition(";")[0] == REASONS[answer]
    if point in ("the cause is asked for", *MAIN_FIRST):
        assert (record["step"], attempt["end_step"], attempt["exit_code"]) == (4, 4, 143)


GIT = """#!/bin/bash
while [[ -n $GIT_INDEX_FILE && -e "{0}/hangs" ]]; do sleep 0.05; done
exec {1} "$@"
"""
"""Git, whose list of uncommitted changes takes as long as the file `hangs` exists."""


def test_a_job_that_is_preempted_at_once_does_not_wait_for_the_changes_of_its_code(tmp_path):
    slurm = ScriptedSlurm(tmp_path / "slurm")
    (tmp_path / "hangs").touch()
    with pytest.MonkeyPatch.context() as patch:
        slurm.install(patch)
        command = slurm.folder / "bin" / "git"
        command.write_text(GIT.format(tmp_path, shutil.which("git")))
        command.chmod(0o755)
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    slurm.answer("killed by hand", "preempted, with a grace")
    outputs = tmp_path / "outputs"
    words = ["-m", "launcher", *experiment(outputs, steps=6), "dispatch.grace=30"]
    process = python.start(*words, env=environment, cwd=ROOT)
    wait_for(lambda: any(map(steps_done, run_folders(outputs))))
    process.send_signal(signal.SIGTERM)
    output = process.communicate()[0]
    (folder,) = run_folders(outputs)
    assert process.returncode == 143, output
    assert "requeue 6" in slurm.calls
    assert not (folder / ENVIRONMENT).exists()
    (tmp_path / "hangs").unlink()
    alone = {name: text for name, text in environment.items() if not name.startswith("SLURM_")}
    done = python.run(*words, "tracker.pace.seconds=0", env=alone, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / ENVIRONMENT).exists() and (folder / CODE).exists()
