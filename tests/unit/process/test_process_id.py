import os
import subprocess
import sys

from launcher.process.process_id import process_space, process_start


def test_only_a_running_process_has_a_start_time():
    child = subprocess.Popen(["sleep", "100"])
    try:
        assert process_start(child.pid) == process_start(child.pid) is not None
    finally:
        child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(child.pid) is None, "a zombie is not running"
    child.wait()
    assert process_start(child.pid) is None


def test_a_container_on_this_machine_is_another_space():
    code = "from launcher.process.process_id import process_space; print(process_space())"
    words = [sys.executable, "-c", code]
    assert space_of(words) == process_space()
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    if (
        sys.platform == "linux"
        and subprocess.run([*inside, "true"], capture_output=True).returncode == 0
    ):
        assert space_of([*inside, *words]) != process_space()


def space_of(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
