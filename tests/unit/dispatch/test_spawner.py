"""Signals and failures of ranks, without torch."""

import signal
import sys

import pytest

from launcher.dispatch.spawner import Spawner
from launcher.process import signals

RANK = """
import os, signal, sys, time
from launcher.dispatch import child_job, rank
from launcher.process import signals

def work(folder):
    if os.environ["RANK"] == "1":
        {act}
    while not signals.first_signal():
        time.sleep(0.02)
    return {{"kind": "stopped", "signum": signals.first_signal()}}, 128 + signals.first_signal()

rank.work = work
child_job.main()
"""


@pytest.fixture(autouse=True)
def no_signal_stays():
    yield
    signals.forget()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2])
@pytest.mark.parametrize("imports", [("json",), None], ids=["forked", "new"])
def test_a_signal_to_one_rank_reaches_all(tmp_path, signum, imports):
    script = RANK.format(act=f"os.kill(os.getpid(), {int(signum)})")
    ranks = Spawner((sys.executable, "-c", script), 3, tmp_path, imports).run()
    assert [rank.report["signum"] for rank in ranks] == [signum] * 3
    assert signals.first_signal() == signum, "the next run of a sweep does not start"
