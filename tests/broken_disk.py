"""A hook under which calls on the files of checkpoints fail, hang, or are slow; it stands among the trackers, which are no
part of a run's identity."""

import errno
import os
import threading
import time
from typing import Any

from launcher import BaseHook
from launcher.checkpoint.store import CheckpointStore
from launcher.distributed import Ranks


class BrokenDisk(BaseHook):
    """While `step` is from `first` to `last`, an os call on what lies in a checkpoint's folder does not do its work.

    Args:
        how: the name of an error (EIO), "hang", or seconds to wait before it is done.
        rank: on this rank alone; None: on all.
    """

    def __init__(self, first: int, last: int = 10**9, call: str = "write", how: str = "EIO", rank: int | None = None):
        self.first, self.last, self.call, self.how, self.rank = first, last, call, how, rank

    def on_before_train(self, trainer: Any) -> None:
        if self.rank not in (None, trainer.strategy.ranks.rank):
            return
        real = getattr(os, self.call)

        def call(what: Any, *args: Any, **kwargs: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
            if self.first <= trainer.step <= self.last and "/.tmp-step-" in str(path):
                if self.how == "hang":
                    threading.Event().wait()
                if self.how.startswith("E"):
                    number = getattr(errno, self.how)
                    raise OSError(number, os.strerror(number), str(path))
                time.sleep(float(self.how))
            return real(what, *args, **kwargs)

        setattr(os, self.call, call)


class BlindRank(BaseHook):
    """On this rank no checkpoint is seen by who looks for one."""

    def __init__(self, rank: int):
        if Ranks.from_env().rank == rank:
            CheckpointStore.newest_valid = CheckpointStore.steps = _sees_nothing  # type: ignore[assignment, method-assign]


def _sees_nothing(self: CheckpointStore, *args: Any) -> Any:
    raise AssertionError("this rank was asked what checkpoints there are")
