"""Worker processes for loading: torch's DataLoader, made safe against signals and closed in bounded time.

A scheduler signals the whole process group. A worker that died of it would fail the very step after which the trainer
wants to save, so workers ignore the signals the trainer handles, from their first instruction on.
"""

from __future__ import annotations

import atexit
import pickle
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP}
POLL_SECONDS = 1.0
CLOSE_SECONDS = 2.0  # a worker that is still busy then is killed

_open: weakref.WeakSet[WorkerBatches] = weakref.WeakSet()


class WorkerTraceback(Exception):
    """The traceback of a worker, as the cause of the error that is raised in the trainer."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Failure:
    """An exception on its way from a worker to the trainer; type and message stay what they were."""

    def __init__(self, error: Exception):
        self.traceback = "".join(traceback.format_exception(error))
        try:
            self.error = pickle.dumps(error)
            pickle.loads(self.error)
        except Exception:  # an exception class may fail in any way when it is pickled
            self.error = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))

    def reraise(self) -> None:
        error = pickle.loads(self.error)
        error.__cause__ = WorkerTraceback(self.traceback)
        raise error


class GuardedFetch:
    """`fetch[request]`, with errors returned as a `Failure`."""

    def __init__(self, fetch: Any):
        self.fetch = fetch

    def __getitem__(self, request: Any) -> Any:
        try:
            return self.fetch[request]
        except Exception as error:
            return Failure(error)


class GuardedStream(IterableDataset):
    """The stream's batches, with an error as the last of them, a `Failure`."""

    def __init__(self, stream: Iterable[Any]):
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.stream
        except Exception as error:
            yield Failure(error)


def ignore_signals(worker_id: int) -> None:
    """In a new worker: ignore the trainer's signals, then let in what was held back meanwhile."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold the signals back in this thread. Processes started inside inherit that; for us they arrive at the end."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class WorkerBatches:
    """An iterator over batches that worker processes make; `close()` ends the workers.

    Either `source[request]` for each of `requests`, in their order, or, with `requests` None, the batches of the
    iterable `source` (one worker then: its order is the stream's). `on_wait` is called about once a second while the next
    batch is not there, and may raise; a later `next()` still gets that batch.
    """

    def __init__(
        self,
        source: Any,
        requests: Iterable[Any] | None,
        num_workers: int,
        *,
        pin_memory: bool = False,
        on_wait: Callable[[], None] | None = None,
    ):
        self._on_wait = on_wait
        loader: DataLoader[Any] = DataLoader(
            GuardedStream(source) if requests is None else GuardedFetch(source),  # type: ignore[arg-type]
            sampler=requests,
            batch_size=None,
            num_workers=1 if requests is None else num_workers,
            collate_fn=_as_it_is,
            pin_memory=pin_memory,
            timeout=POLL_SECONDS if on_wait else 0,
            worker_init_fn=ignore_signals,
            generator=torch.Generator().manual_seed(0),  # else it would draw from the training's generator
        )
        with signals_held():
            self._iterator: Any = iter(loader)
        _open.add(self)

    def __iter__(self) -> WorkerBatches:
        return self

    def __next__(self) -> Any:
        batch = self._next()
        if isinstance(batch, Failure):
            self.close()
            batch.reraise()
        return batch

    def _next(self) -> Any:
        while True:
            try:
                return next(self._iterator)
            except RuntimeError as error:
                if self._on_wait is None or not str(error).startswith("DataLoader timed out"):
                    raise
                self._on_wait()

    def close(self) -> None:
        """End the workers, within seconds. They ignore the SIGTERM that torch sends to a slow one: SIGKILL it."""
        _open.discard(self)
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            for worker in self._iterator._workers:
                if worker.is_alive():
                    worker.kill()

        timer = threading.Timer(CLOSE_SECONDS, kill)
        timer.daemon = True
        timer.start()
        try:
            self._iterator._shutdown_workers()
        except RuntimeError:  # torch's SIGCHLD handler tells of a worker that was killed
            if not killed.is_set():
                raise
        finally:
            timer.cancel()


def _as_it_is(batch: Any) -> Any:
    return batch


@atexit.register
def _kill_all() -> None:
    """At exit, workers that nobody closed would be waited for without end, as they ignore SIGTERM."""
    if _open:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise for each of them
    for batches in list(_open):
        for worker in batches._iterator._workers:
            worker.kill()
