"""Forced exit, in processes of their own."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

SCRIPT = """
import ctypes, os, signal, sys, time
from launcher.process import deadline
from launcher.process import signals

signals.install()
deadline.arm({grace})

def report(signum, reason):
    print("forced exit", signum, reason, flush=True)

with deadline.on_forced_exit(report):
    {act}
print("continued", signals.first_signal(), flush=True)
"""
# Waiting in C as a collective does: no Python handler runs.
HANG = "ctypes.CDLL(None).poll(None, 0, 20000)"
TERM = "os.kill(os.getpid(), signal.SIGTERM)"


def run(grace: str, act: str) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(grace=grace, act=act)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("before", ["None", "deadline.progress(60); deadline.progress()"])
def test_a_hang_in_native_code_ends(before):
    other = "subprocess.Popen(['sh', '-c', f'sleep 0.3; kill -TERM {os.getpid()}'])"
    done = run("0.5", f"{before}; import subprocess; {other}; {HANG}; {HANG}")
    assert done.returncode == 1, done.stderr
    reason = "No progress for 0.5 s after SIGTERM: forced exit. The last checkpoint is valid."
    assert done.stdout == f"forced exit 15 {reason}\n"
    assert done.stderr.splitlines()[-1] == reason
    assert 'File "<string>"' in done.stderr


QUIET = {
    "progress": ("3", f"{TERM}; [(time.sleep(0.1), deadline.progress()) for _ in range(40)]"),
    "an announced wait": ("2", f"{TERM}; deadline.progress(60); time.sleep(3)"),
    "no grace": ("None", f"{TERM}; time.sleep(0.5)"),
    "disarmed": ("2", f"{TERM}; deadline.disarm(); time.sleep(3)"),
    "disarmed while the scheduler is asked": (
        "None, lambda: time.sleep(3) or 0.0",
        f"{TERM}; time.sleep(0.2); deadline.disarm(); time.sleep(4)",
    ),
    "a scheduler that does not answer": ("None, lambda: None", f"{TERM}; time.sleep(0.5)"),
}


@pytest.fixture(scope="module")
def quiet():
    """All of them at once, since they only wait."""
    with ThreadPoolExecutor(len(QUIET)) as threads:
        return dict(zip(QUIET, threads.map(lambda case: run(*case), QUIET.values()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUIET)
def test_no_forced_exit(quiet, name):
    done = quiet[name]
    assert (done.returncode, done.stdout) == (0, "continued 15\n"), done.stderr


@pytest.mark.slow
def test_a_forked_child_s_signals_are_its_own():
    fork = "child = os.fork() or (time.sleep(0.6), os._exit(0))"
    done = run(
        "0.1",
        f"{fork}; time.sleep(0.3); os.kill(child, signal.SIGTERM); os.waitpid(child, 0);"
        " time.sleep(0.5)",
    )
    assert (done.returncode, done.stdout) == (0, "continued 0\n"), done.stderr


def test_a_signal_before_it_was_armed_counts():
    done = run("0.3", f"{TERM}; deadline.arm(0.3); {HANG}; {HANG}")
    assert done.returncode == 1, done.stderr


def test_a_scheduler_s_end_counts_whatever_the_progress():
    progress = "[(time.sleep(0.1), deadline.progress()) for _ in range(200)]"
    done = run("30, lambda: 0.4", f"{TERM}; {progress}")
    assert done.returncode == 1, done.stderr
    assert "after SIGTERM, when the job was about to be killed: forced exit." in done.stdout


def test_a_scheduler_that_does_not_know_the_end_is_asked_again():
    done = run("30, [0.1, None, None].pop", f"deadline.RETRY_SECONDS = 0.1; {TERM}; {HANG}; {HANG}")
    assert done.returncode == 1, done.stderr
