"""Workers outlive a signal to the process group, and end with their parent."""

import textwrap

import pytest

from support import python
from support.processes import running
from support.runner import ENVIRONMENT
from support.waiting import wait_for

PRELUDE = """
import os, signal, sys, threading, time
from itertools import islice
import multiprocessing
from launcher.data import ResumableLoader

class Slow:
    def __init__(self, seconds): self.seconds = seconds
    def __len__(self): return 1000
    def __getitem__(self, index):
        if index: time.sleep(self.seconds)
        return index

def loader(seconds, **options):
    return ResumableLoader(
        Slow(seconds), seed=0, micro_batch_size=1, shuffle=False, **({"num_workers": 2} | options)
    )
"""


def run(script):
    return python.run("-c", PRELUDE + textwrap.dedent(script), env=ENVIRONMENT, timeout=240)


def test_signals_to_the_group_kill_no_worker():
    """Not while they work, and not while they start."""
    done = run("""
        handled = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]
        seen = set()
        for number in handled:
            signal.signal(number, lambda number, frame: seen.add(number))
        stopping = threading.Event()
        def shoot():
            while not stopping.wait(0.002):
                for number in handled:
                    os.killpg(0, number)
        shooter = threading.Thread(target=shoot)
        shooter.start()
        batches = iter(loader(0.01))
        assert [batch.item() for batch in islice(batches, 20)] == list(range(20))
        batches.close()
        stopping.set()
        shooter.join()
        assert seen == set(handled), seen
        assert not multiprocessing.active_children()
        print("went on")
    """)
    assert done.stdout == "went on\n", done.stderr


def test_exit_without_close_waits_for_no_worker():
    done = run("""
        batches = iter(loader(1000))
        print(next(batches).item(), flush=True)
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)


@pytest.mark.parametrize(
    "when",
    [
        "threading.Thread(target=report).start(); list(loader(0))",
        "batches = iter(loader(1000)); next(batches); report(); next(batches)",
    ],
    ids=["while they start", "within a sample"],
)
def test_workers_end_with_their_parent(when):
    """Killed without a word, it leaves no process behind."""
    script = f"""
        def report():
            while len(multiprocessing.active_children()) < 2:
                time.sleep(0.001)
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        {when}
    """
    process = python.start("-c", PRELUDE + textwrap.dedent(script), env=ENVIRONMENT)
    workers = [int(pid) for pid in process.stdout.readline().split()]
    process.kill()
    process.wait()
    assert len(workers) == 2
    wait_for(lambda: not dict(running()).keys() & {*workers})
