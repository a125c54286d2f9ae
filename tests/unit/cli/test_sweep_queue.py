"""A sweep and a listing call the end of a run by the same word."""

import pytest

from launcher.cli.sweep_queue import reason
from launcher.dispatch.jobs import Job, JobResult
from launcher.process.child import describe_end
from launcher.runs.stored_run import StoredRun
from support.composition import run_of
from support.run_maker import run_maker


@pytest.mark.parametrize(("recorded", "word"), [("running", "stale"), ("failed", "failed")])
def test_the_end_of_a_killed_run_has_the_word_of_its_listing(tmp_path, recorded, word):
    folder = run_maker(tmp_path)("mlp", "aaaa0000", state="stale" if word == "stale" else recorded)
    run = run_of(["model=mlp", "data=digits"]).replace({"run.dir": str(folder.path)})
    result = JobResult(error=ChildProcessError(describe_end(-9)))

    assert StoredRun.read(folder.path).state == word
    assert reason(Job(run, 0, []), result) == f"{word}: was killed by signal 9"
