"""Signals on which a run saves and exits, with its exit code and the time that it takes."""

import os
import pty
import signal
from shlex import split

import pytest

from support import python
from support.runner import launch, record, steps, stop_at

RUN = split(
    "model=mlp data=digits trainer.max_steps=30 hooks.checkpointing.interval=10"
    " hooks.evaluation.interval=0"
)
ENDLESS = "trainer.max_steps=1000000"


@pytest.mark.parametrize(
    ("signum", "options", "code"),
    [
        ("SIGXCPU", ["exit_signals=[SIGXCPU]"], 128 + signal.SIGXCPU),
        ("SIGHUP", ["exit_signals=xcpu", "exit_code=7"], 7),
        ("SIGQUIT", ["exit_signals=[SIGXCPU]", "exit_code=0", "exit_delay=0.5"], 0),
        ("SIGTERM", ["asynchronous=false"], 128 + signal.SIGTERM),
    ],
)
def test_leaving(tmp_path, signum, options, code):
    options = [f"hooks.checkpointing.{option}" for option in options]
    done = launch(tmp_path, *RUN, *options, *stop_at(13, signum=signum, group=False), code=code)
    assert steps(tmp_path) == [10, 13]
    last = record(tmp_path)["attempts"][-1]
    assert (last["outcome"], last["signal"], last["exit_code"]) == ("preempted", signum, code)
    assert ("Saved; leaving in 0.5 s." in done.output) == (signum == "SIGQUIT")


def test_unknown_signal_name_is_rejected(tmp_path):
    done = launch(tmp_path / "outputs", *RUN, "hooks.checkpointing.exit_signals=[SIGNOSE]", code=2)
    assert "hooks.checkpointing.exit_signals='SIGNOSE': is not a signal" in done.output
    assert not (tmp_path / "outputs").exists()


def test_a_closed_terminal_loses_no_step(tmp_path):
    """SIGHUP comes, and from then on nothing can be printed."""
    command = python.interpreter()
    pid, terminal = pty.fork()
    if pid == 0:
        words = ["-m", "launcher", f"paths.outputs={tmp_path}", *RUN, ENDLESS]
        os.execv(command, [str(command), *words])
    printed = b""
    while b"checkpoint copied" not in printed:
        printed += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP
    last = record(tmp_path)["attempts"][-1]
    assert (last["outcome"], last["signal"]) == ("preempted", "SIGHUP")
    assert steps(tmp_path)[-1] == last["end_step"]
