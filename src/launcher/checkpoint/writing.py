"""A save in progress: whether its writer makes progress, and how it is abandoned."""

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


class Abandoned(Exception):
    """Raised in a writer that was abandoned and wakes up again."""


class Writing:
    """A save in progress, as the training thread sees it."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self._given_up = False
        self._at = time.monotonic()
        self._waits = False

    def is_alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def join(self, timeout: float) -> None:
        if self.thread is not None:
            self.thread.join(timeout)

    def idle(self) -> float:
        """Return the seconds since this rank's writer last made progress."""
        return 0.0 if self._waits else time.monotonic() - self._at

    def advance(self) -> None:
        """Report progress, or raise `Abandoned`, since a later save may be complete."""
        if self._given_up:
            raise Abandoned("this save was abandoned")
        self._at = time.monotonic()

    def give_up(self, patience: float) -> None:
        self._given_up = True
        self.error = TimeoutError(
            f"its writer has hung for {patience:g} s and is abandoned; from now on training waits"
            " for each save"
        )

    @contextmanager
    def waiting_for_others(self) -> Iterator[None]:
        """Mark this rank as waiting, so that it does not count as hanging."""
        self._waits = True
        try:
            yield
        finally:
            # In this order: training's thread may look in between, and would see a hanging writer.
            self._at = time.monotonic()
            self._waits = False


def gather(value: object, group: object, writing: Writing) -> list[Any]:
    """Return every rank's value, in rank order, or raise `Abandoned`.

    A blocking collective cannot be interrupted, and crashes a process that exits during it. This
    one is polled, so that an abandoned writer can leave it.
    """
    mine = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    # The collective needs equal shapes, so the sizes come first.
    sizes = _gather(torch.tensor([mine.numel()]), group, writing)
    room = torch.zeros(int(max(sizes)), dtype=torch.uint8)
    room[: mine.numel()] = mine
    answers = _gather(room, group, writing)
    return [
        pickle.loads(row[: int(n)].numpy().tobytes()) for row, n in zip(answers, sizes, strict=True)
    ]


def _gather(tensor: torch.Tensor, group: Any, writing: Writing) -> list[torch.Tensor]:
    rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(rows, tensor, group=group, async_op=True)
    assert work is not None
    while not work.is_completed():
        writing.advance()
        time.sleep(0.002)
    work.wait()
    return rows
