"""A signal before the first step ends the command with a message."""

import os
import signal

import pytest

from support import python

MODEL = """
import os
import signal

from launcher.models.mlp import MLP


class Net(MLP):
    def __init__(self, **arguments):
        os.kill(os.getpid(), getattr(signal, os.environ["SENT"]))
        super().__init__(**arguments)
"""
RUN = (
    *("-m", "launcher", "model=mlp", "data=synthetic", "strategy=none", "device=cpu"),
    *("model._target_=early.Net", "trainer.max_steps=2"),
)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_before_the_first_step_is_reported_once(tmp_path, name):
    (tmp_path / "early.py").write_text(MODEL)
    done = python.run(*RUN, cwd=tmp_path, env={**os.environ, "SENT": name})
    assert done.returncode == 128 + getattr(signal, name)
    assert str(done.stdout).count(f"Stopped by {name} ") == 1
    assert "the same command " in done.stdout
