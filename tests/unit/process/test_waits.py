"""A signal that the main thread does not notice at once, since another thread receives it."""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.process.waits import wait_for_future, wait_for_process


class Handled(Exception):
    pass


@pytest.fixture
def signalled():
    """Another thread receives a signal, whose handler raises in the main thread."""

    def handle(*_):
        raise Handled

    def receive():
        time.sleep(0.1)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=receive)
    thread.start()
    yield
    thread.join()
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_ends_the_wait_for_a_process(signalled):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    try:
        with pytest.raises(Handled):
            wait_for_process(process)
    finally:
        process.kill()
    assert wait_for_process(process) == -signal.SIGKILL


def test_a_signal_ends_the_wait_for_a_future(signalled):
    until = threading.Event()
    with ThreadPoolExecutor() as pool:
        future = pool.submit(until.wait, 100)
        with pytest.raises(Handled):
            wait_for_future(future)
        until.set()
        assert wait_for_future(future) is True
