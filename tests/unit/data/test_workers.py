"""Workers outlive a signal to the process group, end with the iterator, and hand on errors as they
are."""

import multiprocessing
import os
import textwrap
import time
from itertools import islice

import pytest

from launcher.data import ResumableLoader
from launcher.errors import ConfigError
from support import python
from support.runner import ENVIRONMENT

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
        for _ in range(2):
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
    deadline = time.monotonic() + 120
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, workers))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan may lie there as a zombie where init does not reap.
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


class Stuck:
    """Hands out sample 0, and then nothing for a long time."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index:
            time.sleep(1000)
        return index


def test_close_ends_workers_that_are_stuck():
    # Persistent workers of another test's loader end when the loader is collected.
    others = {child.pid for child in multiprocessing.active_children()}
    batches = iter(
        ResumableLoader(Stuck(), seed=0, micro_batch_size=1, shuffle=False, num_workers=2)
    )
    next(batches)
    workers = {child.pid for child in multiprocessing.active_children()} - others
    assert len(workers) == 2 and all(map(alive, workers))
    batches.close()
    assert not any(map(alive, workers))


class OddError(Exception):
    """Cannot be made from its message alone, so it does not survive pickling."""

    def __init__(self, path, line):
        super().__init__(f"{path}:{line} is broken")


class Faulty:
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 3:
            raise self.error
        return index


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "error, kind, message",
    [
        (ValueError("no label"), ValueError, "^no label\ndata: Faulty.3. raised it.$"),
        (ConfigError("data.files='x': a sentence."), ConfigError, "^data.files='x': a sentence.$"),
        (OddError("shard-7", 12), Exception, "shard-7:12 is broken\ndata: Faulty.3. raised it.$"),
    ],
)
def test_errors_keep_type_and_message(error, kind, message, num_workers):
    loader = ResumableLoader(
        Faulty(error), seed=0, micro_batch_size=2, shuffle=False, num_workers=num_workers
    )
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(kind, match=message) as caught:
        list(islice(batches, 2))
    assert loader.samples == 2
    if num_workers:
        assert "__getitem__" in str(caught.value.__cause__), "the worker's traceback is shown"
