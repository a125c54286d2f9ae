"""Processes that a user's code starts are the user's: a signal ends them, as without Launcher.

Workers of data loaders are not: they outlive a signal to the process group, until the run has
saved.
"""

import signal
import textwrap

import pytest

from support import python
from support.runner import ENVIRONMENT

PRELUDE = """
import multiprocessing, os, signal, subprocess, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from launcher import BaseHook, CheckpointingHook, EvaluationHook
from launcher.process import deadline, signals
from support.toy import Toy

def square(number):
    return number * number

class Rows(Dataset):
    def __len__(self): return 12
    def __getitem__(self, index): return torch.full((2,), index / 12)

class Stream(IterableDataset):
    def __iter__(self): return iter([torch.full((2,), index / 12) for index in range(12)])

class Holder:
    def __init__(self, loader): self.parts = {"main": [loader]}
    def __iter__(self): yield from self.parts["main"][0]

def note(worker_id):
    assert torch.utils.data.get_worker_info().id == worker_id
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    os.write(1, b"own ")

def shoot(signum):
    # As a scheduler does, from a process that the signal ends too.
    subprocess.run(["sh", "-c", f"kill -{int(signum)} 0"])
    time.sleep(0.2)

class Shot(BaseHook):
    def __init__(self, signum, at=5):
        self.signum, self.at = signum, at
    def on_batch(self, trainer, batch):
        if trainer.step == self.at:
            shoot(self.signum)

def train(loader, *hooks, steps=8, grace=2.0):
    signals.install()
    deadline.arm(grace)
    folder = sys.argv[1]
    toy = Toy([*hooks, CheckpointingHook(interval=100)], steps, folder, loader)
    try:
        toy.train()
    finally:
        print("steps", toy.step, *sorted(os.listdir(folder + "/checkpoints")), flush=True)
"""
LOADERS = {
    "a plain loader": "DataLoader(Rows(), batch_size=4, num_workers=2)",
    "its own start": "DataLoader(Rows(), batch_size=4, num_workers=2, worker_init_fn=note)",
    "persistent": "DataLoader(Rows(), batch_size=4, num_workers=2, persistent_workers=True)",
    "any order": "DataLoader(Rows(), batch_size=4, num_workers=2, in_order=False)",
    "a stream": "DataLoader(Stream(), batch_size=4, num_workers=2)",
    "inside an object": "Holder(DataLoader(Rows(), batch_size=4, num_workers=2))",
}


def run(tmp_path, script):
    program = PRELUDE + textwrap.dedent(script)
    return python.run("-c", program, str(tmp_path), env=ENVIRONMENT, timeout=240)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR2"])
def test_workers_of_a_user_s_loader_outlive_a_signal_to_the_group(tmp_path, loader, name):
    done = run(tmp_path, f"train({LOADERS[loader]}, Shot(signal.{name}))")
    assert done.returncode == 128 + signal.Signals[name], done.stderr
    assert "steps 5 latest step-00000005\n" in done.stdout, done.stdout + done.stderr
    assert ("own " in done.stdout) == (loader == "its own start")


def test_workers_of_a_user_s_validation_loader_outlive_a_signal_to_the_group(tmp_path):
    done = run(
        tmp_path,
        """
        class Shooting(Toy):
            def forward(self, input):
                if not self.model.training and not signals.first_signal():
                    shoot(signal.SIGUSR2)
                return super().forward(input)
        Toy = Shooting
        batches = DataLoader(Rows(), batch_size=4, num_workers=2)
        train(None, EvaluationHook(interval=3, loader=lambda: batches, at_start=False))
        """,
    )
    assert done.returncode == 128 + signal.SIGUSR2, done.stderr
    assert "steps 3 latest step-00000003\n" in done.stdout, done.stdout + done.stderr


def test_a_worker_that_is_stuck_does_not_delay_the_end(tmp_path):
    done = run(
        tmp_path,
        """
        class Stuck(Rows):
            def __getitem__(self, index):
                if index == 4:
                    time.sleep(1000)
                return super().__getitem__(index)
        threading.Timer(1.0, shoot, (signal.SIGTERM,)).start()
        train(DataLoader(Stuck(), batch_size=4, num_workers=1), grace=60.0)
        """,
    )
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "steps 1 latest step-00000001\n" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("end", ["with", "lives on"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR2"])
def test_a_pool_of_a_dataset_is_saved_or_ended_by_the_grace(tmp_path, end, name):
    """Its processes end by the signal, as in any program; what waits for them may wait forever."""
    done = run(
        tmp_path,
        f"""
        class Pooled(Rows):
            pool = None
            def __getitem__(self, index):
                if {end == "lives on"}:
                    self.pool = self.pool or multiprocessing.Pool(2)
                    self.pool.map(square, range(4))
                else:
                    with multiprocessing.Pool(2) as pool:
                        pool.map(square, range(4))
                return super().__getitem__(index)
        train(DataLoader(Pooled(), batch_size=4), Shot(signal.{name}))
        """,
    )
    was_saved = done.returncode == 128 + signal.Signals[name]
    if was_saved:
        assert "steps 5 latest step-00000005\n" in done.stdout, done.stdout + done.stderr
    else:
        assert done.returncode == 1, done.stdout + done.stderr
        assert f"after {name}: forced exit. The last checkpoint is valid." in done.stderr


def test_two_hundred_pools_end(tmp_path):
    done = run(
        tmp_path,
        """
        class Pooled(Rows):
            def __len__(self): return 200
            def __getitem__(self, index):
                with multiprocessing.Pool(2) as pool:
                    assert list(pool.imap(square, range(3))) == [0, 1, 4]
                return super().__getitem__(index)
        train(DataLoader(Pooled(), batch_size=10), steps=20)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "steps 20 latest step-00000020\n" in done.stdout


def test_a_signal_during_a_fork_is_noted_by_the_parent(tmp_path):
    """An exception would be lost there, so the wait goes on, and another signal ends it."""
    done = run(
        tmp_path,
        """
        os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGTERM))
        signals.install()
        def batch():
            child = multiprocessing.get_context("fork").Process(target=square, args=(1,))
            child.start()
            child.join()
            print(child.exitcode, signals.first_signal(), flush=True)
            signal.raise_signal(signal.SIGUSR1)
        try:
            signals.wait_for(batch)
        except signals.Interrupted:
            print("interrupted")
        """,
    )
    assert (done.stdout, done.stderr) == ("0 15\ninterrupted\n", "")
