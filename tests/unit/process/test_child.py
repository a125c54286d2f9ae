"""Child processes: signals while they start and run, and what is said about their end."""

import os
import signal
import subprocess
import sys

import pytest

from launcher.process.child import TAIL_BYTES, describe_end, last_lines, start_child
from support.waiting import wait_for


@pytest.mark.parametrize(
    ("signum", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_a_process_that_is_stopped_may_take_its_time_to_save(signum, whole_group):
    """A terminal sends Ctrl-C to the whole group, `kill` to one process."""
    child = (
        "import signal, sys, time\n"
        "def save(signum, _): time.sleep(0.7); print('saved', flush=True); sys.exit(128 + signum)\n"
        "signal.signal(signal.SIGINT, save); signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    parent = (
        "import sys; from launcher.process.child import run_to_end;"
        " sys.exit(run_to_end([sys.executable, *sys.argv[1:]]))"
    )
    words = [sys.executable, "-c", parent, "-c", child]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        (os.killpg if whole_group else os.kill)(process.pid, signum)
        assert process.stdout.read() == "saved\n"
    assert process.returncode == 128 + signum


def test_a_signal_before_a_child_has_its_handlers_waits_for_them(tmp_path):
    program = (
        "import os, signal, sys, time\n"
        "open('ready', 'w'); time.sleep(0.3)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "from launcher.process.parent import follow_parent\n"
        "follow_parent(int(os.environ['LAUNCHER_PARENT'])); time.sleep(60)"
    )
    process = start_child([sys.executable, "-c", program], tmp_path / "log", cwd=tmp_path)
    wait_for(lambda: (tmp_path / "ready").exists())
    process.terminate()
    assert process.wait() == 7, last_lines(tmp_path / "log", 9)


def test_the_last_lines_of_a_log(tmp_path):
    (tmp_path / "log").write_bytes(b"x" * TAIL_BYTES + b"\none\n\xff\nthree\n")
    assert last_lines(tmp_path / "log", 2) == ["\ufffd", "three"]
    assert last_lines(tmp_path / "no log", 2) == []
    assert [describe_end(3), describe_end(-9)] == [
        "ended with exit code 3",
        "was killed by signal 9",
    ]
