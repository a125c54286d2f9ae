"""In processes of their own, since it is about how one ends."""

import os
import subprocess
import sys

import pytest

from launcher.run.quick_exit import PROFILERS

SCRIPT = """
import atexit, ctypes, sys
from launcher.run.quick_exit import skip_exit_handlers

libc = ctypes.CDLL(None)
libc.strdup.restype = ctypes.c_void_p

def at_exit(text):  # in C: Python is gone by then
    libc.__cxa_atexit(libc.puts, ctypes.c_void_p(libc.strdup(text)), None)

at_exit(b"loaded before")
skip_exit_handlers()
at_exit(b"loaded later")
atexit.register(libc.puts, b"Python's handler")
libc.puts(b"in C's buffer")
sys.exit(143)
"""


def ended(**environment):
    variables = {name: value for name, value in os.environ.items() if name not in PROFILERS} | environment
    return subprocess.run([sys.executable, "-c", SCRIPT], env=variables, capture_output=True, text=True, check=False)


def test_only_the_handlers_of_libraries_loaded_before_are_skipped():
    done = ended()
    assert (done.returncode, done.stderr) == (143, "")
    assert done.stdout.splitlines() == ["in C's buffer", "Python's handler", "loaded later"]


@pytest.mark.parametrize("variable", [f"{PROFILERS[0]}=libm.so.6", f"{PROFILERS[1]}=/nowhere/profiler.so"])
def test_a_profiler_in_the_process_writes_its_results(variable):
    done = ended(**dict([variable.split("=")]))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (143, "loaded before")
