"""Contenders that take turns: some steps of one, then as many of the next.

A machine that slows down for a while slows all of them, so the ratio of two turns that follow each
other hardly changes.

Every contender is a process, or one for each rank. A byte in a ring of named pipes says whose turn
it is.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

STEPS = 10
"""Steps of a turn: the interval of the default hooks."""
VARIABLE = "BENCHMARK_TURNS"
"""Environment variables: the folder of the pipes, the number of this contender, how many there
are."""


class Ring:
    """Turns in the process that starts the contenders."""

    def __init__(self, folder: Path, contenders: int, ranks: int):
        self.folder, self.contenders = folder, contenders
        self.pipes = [
            [_pipe(folder, rank, number) for number in range(contenders)] for rank in range(ranks)
        ]
        for pipes in self.pipes:
            os.write(pipes[0], b".")

    def environment(self, number: int) -> Mapping[str, str]:
        return {VARIABLE: f"{self.folder}:{number}:{self.contenders}"}

    def exit_after_signal(self, number: int) -> None:
        """This contender has ended: its turns go to the next one."""
        for pipes in self.pipes:
            mine, after = pipes[number], pipes[(number + 1) % self.contenders]
            threading.Thread(target=_pass_on, args=(mine, after), daemon=True).start()


def _pass_on(mine: int, after: int) -> None:
    while byte := os.read(mine, 1):
        os.write(after, byte)


def _pipe(folder: Path, rank: int, number: int) -> int:
    """Opened for both directions: opening does not wait, and a byte stays until it is read."""
    path = folder / f"{rank}-{number}"
    if not path.exists():
        os.mkfifo(path)
    return os.open(path, os.O_RDWR)


class Turns:
    """Turns in a contender's process.

    Attributes:
        steps: that a contender must train, over all turns.
        milliseconds: CPU time a step, of each turn but the first, which warms up.
    """

    def __init__(self, quick: bool, rank: int = 0):
        folder, number, contenders = os.environ[VARIABLE].rsplit(":", 2)
        self.count = 3 if quick else 30
        self.steps = STEPS * (1 + self.count)
        self.milliseconds: list[float] = []
        self._mine = _pipe(Path(folder), rank, int(number))
        self._next = _pipe(Path(folder), rank, (int(number) + 1) % int(contenders))

    def train(self, step: Callable[[], Any]) -> list[float]:
        """Call `step` for every step; return `milliseconds`."""
        for turn in range(1 + self.count):
            start = self._begin()
            for _ in range(STEPS):
                step()
            self._end(turn, start)
        return self.milliseconds

    def batches(self, loader: Any, micro_batches: int = 1) -> Iterator[Any]:
        """Yield the batches of `loader`, so many a step.

        A step lasts until the next batch is fetched: train one step more than `steps`.
        """
        batches = iter(loader)
        for turn in range(1 + self.count):
            start = self._begin()
            for _ in range(STEPS * micro_batches):
                yield next(batches)
            self._end(turn, start)
        yield from batches

    def _begin(self) -> float:
        os.read(self._mine, 1)
        return time.process_time()

    def _end(self, turn: int, start: float) -> None:
        seconds = time.process_time() - start
        os.write(self._next, b".")
        if turn:
            self.milliseconds.append(seconds / STEPS * 1000)


class Loader:
    """A trainer's loader whose batches another iterator passes on; all else is the loader's own."""

    def __init__(self, loader: Any, batches: Callable[[Any], Iterator[Any]]):
        self.loader, self.batches = loader, batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def __iter__(self) -> Iterator[Any]:
        return self.batches(self.loader)
