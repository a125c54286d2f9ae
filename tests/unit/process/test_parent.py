import threading

from launcher.process.parent import when_parent_ends
from support import python

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


def test_a_parent_that_had_ended_before_is_seen():
    ended = threading.Event()
    when_parent_ends(-1, ended.set)
    assert ended.wait(60)


def test_a_parent_that_ends_later_is_seen():
    process = python.start("-c", PROGRAM)
    assert process.stdout.readline() == "seen\n"
    assert process.wait(60) == 0
