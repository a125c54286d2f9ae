import subprocess
import sys
import threading

import pytest

from launcher.process.parent import early_kill, when_parent_ends

PROGRAM = """
import os, threading
from launcher.process.parent import when_parent_ends

parent = os.getpid()
if os.fork() == 0:
    ended = threading.Event()
    when_parent_ends(parent, ended.set)
    print("seen" if ended.wait(60) else "not seen", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("timeout", "grace", "needed"),
    [
        (None, 120.0, "=120"),
        ("60", 120.5, "=121"),
        ("99999", None, "=<seconds>"),
        (None, 30.0, None),
        ("120", 120.0, None),
        ("soon", 120.0, None),
    ],
)
def test_torchrun_that_kills_before_the_grace_ends_is_warned_of(timeout, grace, needed):
    env = {} if timeout is None else {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": timeout}
    assert early_kill(grace, env) is None, "torchrun did not start this process"
    warning = early_kill(grace, env | {"TORCHELASTIC_RUN_ID": "none"})
    assert warning is None if needed is None else f"SHUTDOWN_TIMEOUT{needed} " in warning


def test_a_parent_that_had_ended_before_is_seen():
    ended = threading.Event()
    when_parent_ends(-1, ended.set)
    assert ended.wait(60)


@pytest.mark.slow
def test_a_parent_that_ends_later_is_seen():
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "seen\n")
