"""A process that the tests fork is like one that they start (see `support.python`)."""

import signal
import subprocess
import sys
from typing import Any

import pytest

from support import python
from support.processes import running
from support.runner import ENVIRONMENT
from support.waiting import wait_for

pytestmark = pytest.mark.skipif(not python.CAN_FORK, reason="forks need Linux")
PROGRAM = """
import atexit, json, os, signal, sys, threading

open_fds = []
for fd in range(64):
    try:
        os.fstat(fd)
        open_fds.append(fd)
    except OSError:
        pass
state = {
    "argv": sys.argv,
    "name": __name__,
    "main": sys.modules["__main__"].__name__,
    "cwd": os.getcwd(),
    "environment": {
        key: value for key, value in os.environ.items() if key not in ("LC_CTYPE", "_")
    },
    "open": open_fds,
    "threads": threading.active_count(),
    "session": os.getsid(0) == os.getpgid(0) == os.getpid(),
    "signals": {number: str(signal.getsignal(number)) for number in range(1, 32)},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "path": sys.path[1:],
    "stdin": sys.stdin.read(),
    "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering],
}
atexit.register(print, "at exit")
print(json.dumps(state, sort_keys=True))
"""
LEAVE = {
    "a sentence": ("sys.exit('wrong')", 1),
    "an error": ("raise LookupError('lost')", 1),
    "interrupted": ("raise KeyboardInterrupt", -signal.SIGINT),
    "a code of two bytes": ("sys.exit(259)", 3),
    "a thread that still runs": ("import threading; threading.Timer(0.1, print, [2]).start()", 0),
}


@pytest.fixture(params=["-c", "script", "-m"])
def words(request, tmp_path):
    """Both processes get the same program."""
    (tmp_path / "program.py").write_text(PROGRAM)
    return {"-c": ["-c", PROGRAM], "script": ["program.py"], "-m": ["-m", "program"]}[request.param]


def test_forked_process_starts_in_the_state_of_an_interpreter(words, tmp_path):
    """A test or a shell starts it."""
    env = ENVIRONMENT | {"A": "1"}
    del env["PYTHONUNBUFFERED"]
    words = (*words, "b=c", "d e")
    (tmp_path / "bin").mkdir()
    command = str(python.command(tmp_path / "bin"))
    how: Any = {"env": env, "cwd": tmp_path, "capture_output": True, "text": True}
    how |= {"start_new_session": True, "stdin": subprocess.DEVNULL}
    ended = [
        python.run(*words, env=env, cwd=tmp_path),
        subprocess.run([command, *words], **how),
        subprocess.run([sys.executable, *words], **how),
    ]
    assert ended[2].stdout.endswith("}\nat exit\n")
    for done in ended:
        assert (done.stdout, done.stderr, done.returncode) == (ended[2].stdout, "", 0)


WAITING = """
import os, signal, sys, time

signal.signal(signal.SIGXCPU, lambda *_: sys.exit(7))
print(os.getpid(), flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGXCPU, 7), (signal.SIGKILL, -9)])
def test_signals_of_a_command_reach_the_forked_process(tmp_path, signum, code):
    command = [python.command(tmp_path), "-c", WAITING]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signum)
        assert process.wait() == code
    wait_for(lambda: pid not in dict(running()))


@pytest.mark.parametrize("how", LEAVE)
def test_forked_process_ends_as_an_interpreter(how):
    act, code = LEAVE[how]
    program = (
        "import atexit, os, signal, sys; atexit.register(print, 'at exit'); print('begun',"
        f" flush=True); {act}"
    )
    forked, real = (python.run("-c", program, real=real) for real in (False, True))
    assert forked.returncode == real.returncode == code and forked.stdout == real.stdout
    assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]
