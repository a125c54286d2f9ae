"""Hooks under which calls on the files of checkpoints fail, hang, or are slow. They are
configured as trackers, which are not part of a run's identity."""

import errno
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from launcher import BaseHook
from launcher.checkpoint.store import CheckpointStore
from launcher.process.ranks import Ranks


class BrokenDisk(BaseHook):
    """Lets an os call on a file or folder of the checkpoint fail in the saves of some steps.

    Args:
        how: the name of an error (EIO), "hang", "kill" (the process, by SIGKILL), or seconds to
            wait before it is done.
        rank: on this rank alone; None: on all.
    """

    def __init__(
        self,
        steps: list[int],
        call: str = "pwrite",
        how: str | float = "EIO",
        rank: int | None = None,
    ):
        self.steps, self.call, self.how, self.rank = list(steps), call, how, rank

    def on_before_train(self, trainer: Any) -> None:
        if self.rank not in (None, trainer.strategy.ranks.rank):
            return
        real = getattr(os, self.call)

        def call(what: Any, *args: Any, **kwargs: Any) -> Any:
            is_open = isinstance(what, int)
            path = os.readlink(f"/proc/self/fd/{what}") if is_open else str(os.fspath(what))
            written = re.search(r"/\.tmp-step-(\d+)", path)
            # To look at a folder, not to write.
            reads = self.call == "open" and not args[0] & os.O_WRONLY
            if written and int(written.group(1)) in self.steps and not reads:
                self._fail(path)
            return real(what, *args, **kwargs)

        setattr(os, self.call, call)

    def _fail(self, path: str) -> None:
        if self.how == "hang":
            threading.Event().wait()
        elif self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif isinstance(self.how, str):
            number = getattr(errno, self.how)
            raise OSError(number, os.strerror(number), path)
        else:
            time.sleep(self.how)


class BlindRank(BaseHook):
    """Any search for checkpoints on this rank is an error: rank 0 alone decides."""

    def __init__(self, rank: int):
        if Ranks.from_env().rank == rank:
            CheckpointStore.newest_valid = CheckpointStore.steps = _sees_nothing  # type: ignore[assignment, method-assign]


def _sees_nothing(self: CheckpointStore, *args: Any) -> Any:
    raise AssertionError("this rank was asked what checkpoints there are")


class SignalInSave(BaseHook):
    """Sends this process signals while the checkpoint of a step is written."""

    def __init__(self, step: int, signums: list[str]):
        self.step, self.signums = step, list(signums)

    def on_before_train(self, trainer: Any) -> None:
        real = os.fsync

        def fsync(fd: int) -> None:
            if f"/.tmp-step-{self.step:08d}" in os.readlink(f"/proc/self/fd/{fd}") and self.signums:
                signum = self.signums.pop(0)
                os.kill(os.getpid(), signal.Signals[signum])
                print(f"{signum} in the save", flush=True)
            real(fd)

        os.fsync = fsync


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let this process write no file that is larger."""
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


class FullDisk(BaseHook):
    """Lets a file fill its disk except for `free` bytes, from the end of one step to the end of
    another (None: forever)."""

    def __init__(self, file: str, step: int, until: int | None = None, free: int = 0):
        self.file, self.step, self.until, self.free = file, step, until, free

    def on_after_step(self, trainer: Any) -> None:
        if trainer.step == self.step:
            with open(self.file, "wb", buffering=0) as file:
                while not self._fills(file.fileno()):
                    pass
        elif trainer.step == self.until:
            os.unlink(self.file)

    def _fills(self, file: int) -> bool:
        """Give the file all that is free; return False if the lock's heartbeat, say, has taken some
        of it meanwhile."""
        space = os.statvfs(os.path.dirname(self.file))
        size = space.f_bavail * space.f_bsize - self.free
        try:
            if size > 0:
                os.posix_fallocate(file, os.fstat(file).st_size, size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
        return True
