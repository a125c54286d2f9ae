import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launcher.errors import ConfigError
from launcher.process.files import read_file
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import LockLost, RunLock
from launcher.rundir.lock_holder import Holder, find_local_holder, is_held, read_holder
from support.run_maker import begin_run
from support.waiting import wait_for

HOLD = """
import sys, time
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
with RunLock(RunFolder(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run").create()


@pytest.fixture
def elsewhere(folder):
    """A lock that a process on another machine holds, with a heartbeat of just now."""
    holder = replace(Holder.current(), host="node7", pid=4242, slurm_job_id="99")
    folder.lock_path.write_text(json.dumps(asdict(holder)))
    return holder


def hold(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder.path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def leftovers(folder):
    return [path.name for path in folder.path.iterdir() if "run.lock" in path.name]


def never(seconds):
    raise AssertionError("nothing to wait for")


def test_lock_is_held_by_one_process_at_a_time(folder):
    process = hold(folder)
    try:
        assert is_held(folder) and find_local_holder(folder).pid == process.pid
        by = rf"process {process.pid} on {os.uname().nodename}, since 20.*run\.tag"
        with pytest.raises(ConfigError, match=by):
            RunLock(folder, sleep=never).acquire()
        assert leftovers(folder) == ["run.lock"]
    finally:
        process.send_signal(signal.SIGKILL)
    # Not waited for: until then it is a zombie, which answers to its id and runs no more.
    wait_for(lambda: not is_held(folder))
    with RunLock(folder, sleep=never) as lock:
        assert lock.is_held() and read_holder(folder.lock_path).pid == os.getpid()
    process.wait()
    process.stdout.close()
    assert leftovers(folder) == [] and not is_held(folder)


def test_a_heartbeat_from_elsewhere_is_respected(folder, elsewhere):
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 5:
            os.utime(folder.lock_path, (time.time() + 1, time.time() + 1))

    with pytest.raises(ConfigError, match="process 4242 on node7, SLURM job 99"):
        RunLock(folder, sleep=sleep).acquire()
    assert len(waited) == 5 and is_held(folder) and find_local_holder(folder) is None


def test_silence_from_elsewhere_is_death(folder, elsewhere):
    waited = []
    with RunLock(folder, silence=30, sleep=waited.append):
        assert sum(waited) == 30
    assert leftovers(folder) == []


@pytest.mark.parametrize("whose", ["from long ago", "of a process whose id is used again"])
def test_a_dead_holder_needs_no_wait(folder, elsewhere, whose):
    if whose == "from long ago":
        os.utime(folder.lock_path, (time.time() - 3600, time.time() - 3600))
    else:
        folder.lock_path.write_text(json.dumps(asdict(replace(Holder.current(), started="1"))))
    assert not is_held(folder)
    with RunLock(folder, sleep=never) as lock:
        assert lock.is_held()


def test_released_while_one_looks(folder, elsewhere):
    def sleep(seconds):
        folder.lock_path.unlink(missing_ok=True)

    with RunLock(folder, sleep=sleep) as lock:
        assert lock.is_held()


@pytest.mark.parametrize("content", ["", "{", '{"pid": 1}', "[]"])
def test_a_damaged_lock_speaks_by_its_heartbeat(folder, content):
    folder.lock_path.write_text(content)
    assert is_held(folder)
    with RunLock(folder, silence=0.02) as lock:
        assert lock.is_held()


def test_another_pid_namespace_is_elsewhere(folder, elsewhere):
    container = replace(elsewhere, host=os.uname().nodename, space="other boot pid:[1]", pid=1)
    assert not container.is_local() and Holder.current().is_local()


def test_the_heartbeat_beats(folder):
    with RunLock(folder, beat=0.02):
        os.utime(folder.lock_path, (1, 1))
        wait_for(lambda: folder.lock_path.stat().st_mtime > 1)


def test_a_forked_child_does_not_release(folder):
    with RunLock(folder) as lock:
        child = os.fork()
        if child == 0:
            lock.release()
            os._exit(0)
        os.waitpid(child, 0)
        assert lock.is_held()


def test_without_hard_links(folder, monkeypatch):
    def link(source, target):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", link)
    with RunLock(folder, sleep=never):
        with pytest.raises(ConfigError):
            RunLock(folder, sleep=never).acquire()
        folder.lock_path.write_text(json.dumps(asdict(replace(Holder.current(), started="1"))))
        with RunLock(folder, sleep=never) as other:
            assert other.is_held()
    assert leftovers(folder) == []


def test_files_of_killed_waiters_are_removed(folder):
    dead, alive = replace(Holder.current(), started="1"), Holder.current()
    for holder in (dead, alive):
        (folder.path / f".run.lock.{holder.token}").write_text(json.dumps(asdict(holder)))
    (folder.path / ".run.lock.claim").write_text(json.dumps(asdict(dead)))
    folder.lock_path.write_text(json.dumps(asdict(dead)))
    for name, age in (("old", 3600), ("new", 0)):  # empty files of killed writers
        path = folder.path / f".run.lock.{name}"
        path.touch()
        os.utime(path, (time.time() - age, time.time() - age))
    with RunLock(folder):
        names = {f".run.lock.{alive.token}", ".run.lock.new", "run.lock"}
        assert set(leftovers(folder)) == names


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        RunLock(RunFolder(tmp_path / "file" / "run")).acquire()


CONTEND = """
import json, os, sys, time
from dataclasses import asdict, replace
from pathlib import Path
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock_holder import Holder
from launcher.rundir.lock import RunLock
folder, counter, times = RunFolder(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
dead = json.dumps(asdict(replace(Holder.current(), started="1")))
print("ready", flush=True)
sys.stdin.read()  # until all are ready: an import takes longer than all turns
for turn in range(times):
    lock = RunLock(folder)
    while True:
        try:
            lock.acquire()
            break
        except ConfigError:
            continue
    os.close(os.open(folder.path / "here", os.O_CREAT | os.O_EXCL))  # fails if another is here
    time.sleep(0.001)
    counter.write_text(str(int(counter.read_text()) + 1))
    os.remove(folder.path / "here")
    if turn % 2:  # die with the lock held
        (folder.path / f"dead-{os.getpid()}").write_text(dead)
        os.replace(folder.path / f"dead-{os.getpid()}", folder.lock_path)
    lock.release()
"""


def test_many_want_a_dead_holders_lock(folder, tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, "-c", CONTEND, folder.path, counter, "20"]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(4)]
    assert [process.stdout.readline() for process in processes] == [b"ready\n"] * 4
    for process in processes:
        process.stdin.close()
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    assert counter.read_text() == "80"


def test_a_remnant_of_an_earlier_start_of_the_job_is_shut_out(folder, elsewhere, monkeypatch):
    slept = []
    monkeypatch.setenv("SLURM_JOB_ID", "99")
    with pytest.raises(ConfigError, match="node7"):  # two processes of one start are two runs
        RunLock(folder, silence=0.2, sleep=lambda s: os.utime(folder.lock_path)).acquire()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with RunLock(folder, beat=0.5, sleep=slept.append) as lock:
        assert lock.is_held() and slept == [1.0]  # long enough for the other to notice


def test_a_lock_that_was_lost_is_reported_and_not_removed(folder, caplog):
    reasons = []
    other = json.dumps(asdict(replace(Holder.current(), token="another")))
    with RunLock(folder, beat=0.01, on_lost=reasons.append) as lock:
        folder.lock_path.write_text(other)  # taken over: this process was suspended, say
        wait_for(lambda: "has lost" in caplog.text)
        with pytest.raises(LockLost, match="has lost the run's lock"):
            lock.check()
    assert "writes nothing more" in reasons[0] and folder.lock_path.read_text() == other


def test_a_thread_that_still_works_does_not_put_a_released_lock_back(folder):
    """A signal ends a run while a thread still hashes its last checkpoint, and the process lives
    on, in a notebook for example."""
    told, ends = [], []
    for _ in range(20):
        lock = RunLock(folder, on_lost=told.append)
        lock.acquire()
        has_begun, is_over = threading.Event(), threading.Event()

        def work(lock=lock, has_begun=has_begun, is_over=is_over):
            try:
                while not is_over.is_set():
                    lock.check()
                    has_begun.set()
                lock.check()  # the lock is released
            except LockLost as lost:
                ends.append(str(lost))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert has_begun.wait(60)
        lock.release()
        is_over.wait(0.01)  # in which a check may come
        is_over.set()
        for thread in threads:
            thread.join()
        assert leftovers(folder) == []
    assert all("its lock is released" in end for end in ends) and len(ends) == 60 and not told
    with lock:  # once more
        lock.check()


@pytest.mark.parametrize("has_links", [True, False])
def test_both_threads_put_a_removed_lock_back(folder, has_links, monkeypatch):
    """The second thread finds the lock removed while the first is putting it back: after it has
    written its temporary file, or, without hard links, after it has created an empty lock."""
    begin_run(folder)  # an earlier process's
    lost = []
    with RunLock(folder, beat=3600, on_lost=lost.append) as lock:
        begin_run(folder, check_lock=lock.check)
        folder.lock_path.unlink()
        second = threading.Thread(target=lock.check)

        def let_the_second_in():
            if not second.ident:
                second.start()
                second.join(0.3)  # returns at once unless it waits for the first

        def link(source, target, real=os.link):
            if not has_links:
                raise OSError(errno.EPERM, "no hard links")
            let_the_second_in()
            return real(source, target)

        def read_text(path, real=Path.read_text):
            if not has_links:
                let_the_second_in()
            return real(path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "link", link)
            patch.setattr(Path, "read_text", read_text)
            lock.check()
            second.join()
        assert lock.is_held() and not lost and leftovers(folder) == ["run.lock"]


@pytest.mark.parametrize("how", ["another attempt", "the folder is gone", "only folders are left"])
def test_a_removed_lock_is_lost_where_the_run_is_not_ours_any_more(folder, how, monkeypatch):
    lock = RunLock(folder, sleep=never)
    lock.acquire()
    record = begin_run(folder, check_lock=lock.check)
    folder.lock_path.unlink()
    if how == "another attempt":
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", os.getppid)
            begin_run(folder)
    elif how == "the folder is gone":
        shutil.rmtree(folder.path)
    else:  # a checkpoint was being written when `rm -r` came by
        lock.check()
        folder.lock_path.unlink()
        folder.record_path.unlink()
    before = folder.record_path.read_bytes() if folder.record_path.exists() else None
    with pytest.raises(LockLost):
        record.progress(5, force=True)
    assert before is None or folder.record_path.read_bytes() == before
    lock.release()


@pytest.mark.parametrize("failures", [1, 3, 99])
def test_an_error_at_a_look_at_the_lock_does_not_lose_it(tmp_path, failures, monkeypatch):
    folder = RunFolder(tmp_path / "gpt" / "1a2b").create()
    lost = []
    lock = RunLock(folder, on_lost=lost.append)
    lock.acquire()
    left = iter([OSError(errno.ESTALE, "Stale file handle")] * failures)

    def read(path):
        if path == folder.lock_path and (error := next(left, None)) is not None:
            raise error
        return read_file(path)

    monkeypatch.setattr("launcher.rundir.lock_holder.read_file", read)
    if failures > 3:
        with pytest.raises(OSError, match="Stale"):
            lock.check()
    else:
        lock.check()
    lock.release()
    assert not lost and folder.lock_path.exists() == (failures > 3)


@pytest.mark.parametrize("host", [None, "node7"])
def test_a_copy_of_a_locked_folder_is_free(folder, tmp_path, host):
    with RunLock(folder) as lock:
        if host is not None:
            folder.lock_path.write_text(json.dumps(asdict(replace(lock.holder, host=host))))
        copy = RunFolder(tmp_path / "copy")
        shutil.copytree(folder.path, copy.path)
        assert (is_held(folder), is_held(copy), find_local_holder(copy)) == (True, False, None)
        with RunLock(copy, sleep=lambda _: pytest.fail("waited for a copied lock")):
            assert is_held(copy)
        folder.lock_path.write_text(json.dumps(asdict(lock.holder)))
