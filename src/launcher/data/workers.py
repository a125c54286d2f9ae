"""Worker processes for loading: torch's DataLoader, safe against signals, closed in bounded time.

A scheduler signals the whole process group, and a worker that died of it would fail the step after
which the trainer saves. So workers ignore these signals from their first instruction on, in a
user's own DataLoader too.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from launcher.config.explain import user_traceback
from launcher.process import signals
from launcher.process.object_walk import reach
from launcher.process.parent import when_parent_ends

CLOSE_SECONDS = 2.0
"""Seconds after `close()` until a worker that is still busy is killed."""

MAX_PARTS = 100
"""A list or dictionary with more items is not searched for data loaders."""

_open: weakref.WeakSet[WorkerBatches] = weakref.WeakSet()


class WorkerTraceback(Exception):
    """The traceback of a worker, as the cause of the error that is raised in the trainer."""

    @property
    def of_other_process(self) -> str:
        """Return the traceback, which ends with the error's type, message and notes."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Failure:
    """Carries an exception from a worker to the trainer, with its type and message."""

    def __init__(self, error: BaseException):
        self.traceback = user_traceback(error)
        other = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            other.add_note(note)
        try:
            # A StopIteration would look like the end of the data.
            self.error = pickle.dumps(other if isinstance(error, StopIteration) else error)
            pickle.loads(self.error)
        # An exception class may fail in any way when it is pickled.
        except Exception:  # style: ok
            self.error = pickle.dumps(other)


class GuardedFetch:
    """`fetch[request]`, with errors returned as a `Failure`."""

    def __init__(self, fetch: Any):
        self.fetch = fetch

    def __getitem__(self, request: object) -> object:
        try:
            return self.fetch[request]
        except (Exception, SystemExit) as error:
            return Failure(error)


class GuardedStream(IterableDataset[Any]):
    """The stream's batches. An error becomes the last batch, a `Failure`."""

    def __init__(self, stream: Iterable[object]):
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.stream
        except (Exception, SystemExit) as error:
            yield Failure(error)


class WorkerBatches:
    """An iterator over batches that worker processes make; `close()` ends the workers.

    The batches are `source[request]` for each of `requests`, in order. If `requests` is None, a
    single worker iterates over `source`, which keeps the order of the stream.
    """

    def __init__(
        self,
        source: Any,
        requests: Iterable[object] | None,
        num_workers: int,
        pin_memory: bool,
    ):
        loader: DataLoader[object] = DataLoader(
            GuardedStream(source) if requests is None else GuardedFetch(source),  # type: ignore[arg-type]
            sampler=requests,
            batch_size=None,
            num_workers=1 if requests is None else num_workers,
            collate_fn=_as_it_is,
            pin_memory=pin_memory,
            worker_init_fn=_begin,
            # Without a generator the loader would draw from the training's.
            generator=torch.Generator().manual_seed(0),
        )
        with signals.block():
            self._iterator: Any = iter(loader)
            _open.add(self)

    def __iter__(self) -> WorkerBatches:
        return self

    def __next__(self) -> object:
        batch = next(self._iterator)
        if isinstance(batch, Failure):
            raise pickle.loads(batch.error) from WorkerTraceback(batch.traceback)
        return batch

    def close(self) -> None:
        """Kill the workers within seconds, since they ignore the SIGTERM that torch sends."""
        if self not in _open:
            return
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
        # Torch's SIGCHLD handler reports a worker that was killed.
        except RuntimeError:
            if not killed.is_set():
                raise
        finally:
            timer.cancel()


class WorkerInit:
    """Ignores signals in a worker of a user's loader, and then calls its own `worker_init_fn`.

    A SIGTERM of the parent ends the worker, as torch and Python do where it does not end by itself.
    """

    def __init__(self, own: Callable[[int], object] | None):
        self.own = own

    def __call__(self, worker_id: int) -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None and parent.pid is not None
        signals.ignore_in_worker(parent.pid)
        if self.own is not None:
            self.own(worker_id)


def begin_pass(batches: Iterable[Any]) -> Iterator[Any]:
    """Return `iter(batches)`. The workers of the data loaders in it ignore signals."""
    loaders = [loader for loader in data_loaders(batches) if loader.num_workers]
    for loader in loaders:
        if not isinstance(loader.worker_init_fn, WorkerInit):
            loader.worker_init_fn = WorkerInit(loader.worker_init_fn)
    # Other code may start processes that would never lift the block.
    if batches not in loaders:
        return iter(batches)
    with signals.block():
        return iter(batches)


def data_loaders(owner: object) -> list[DataLoader[Any]]:
    """List the data loaders in an object: itself, or in its attributes and their containers."""
    places = reach({"": owner}, _iterated)
    return [place.value for place in places if isinstance(place.value, DataLoader)]


def _iterated(part: Any) -> Iterable[tuple[object, Any]]:
    """Return what an object may iterate over, by name."""
    if isinstance(part, (list, tuple, dict)):
        items = part.items() if isinstance(part, dict) else enumerate(part)
        return items if len(part) <= MAX_PARTS else ()
    is_read = hasattr(part, "__iter__") and hasattr(part, "__dict__")
    return vars(part).items() if is_read and not isinstance(part, DataLoader) else ()


def _begin(worker_id: int) -> None:
    signals.ignore_in_child()
    # Torch's worker looks for its parent between two batches only, and never ends if the parent has
    # died before the first look.
    parent = multiprocessing.parent_process()
    by_server = multiprocessing.get_start_method(allow_none=True) == "forkserver"
    if parent is not None and parent.pid is not None and not by_server:
        when_parent_ends(parent.pid, lambda: os._exit(1))


def _as_it_is(batch: object) -> object:
    return batch


@atexit.register
def _kill_all() -> None:
    """Kill open workers, since they ignore SIGTERM and Python would wait for them forever."""
    if _open:
        # Torch's handler would raise for each of them.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for batches in list(_open):
        for worker in batches._iterator._workers:
            worker.kill()
