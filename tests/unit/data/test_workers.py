"""Workers end with the iterator, and hand on errors as they are."""

import multiprocessing
import time
from itertools import islice

import pytest

from launcher.config.explain import user_traceback
from launcher.data import ResumableLoader
from launcher.errors import ConfigError


class Stuck:
    """Hands out sample 0, and then nothing for a long time."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index:
            time.sleep(1000)
        return index


def test_close_ends_workers_that_are_stuck():
    # Persistent workers of another test's loader end when the loader is collected.
    others = {child.pid for child in multiprocessing.active_children()}
    batches = iter(
        ResumableLoader(Stuck(), seed=0, micro_batch_size=1, shuffle=False, num_workers=2)
    )
    next(batches)
    workers = {child.pid for child in multiprocessing.active_children()} - others
    assert len(workers) == 2
    batches.close()
    assert not workers & {child.pid for child in multiprocessing.active_children()}


class OddError(Exception):
    """Cannot be made from its message alone, so it does not survive pickling."""

    def __init__(self, path, line):
        super().__init__(f"{path}:{line} is broken")


class Faulty:
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 3:
            raise self.error
        return index


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "error, kind, message",
    [
        (ValueError("no label"), ValueError, "^no label\ndata: Faulty.3. raised it.$"),
        (ConfigError("data.files='x': a sentence."), ConfigError, "^data.files='x': a sentence.$"),
        (OddError("shard-7", 12), Exception, "shard-7:12 is broken\ndata: Faulty.3. raised it.$"),
        (StopIteration(), RuntimeError, "StopIteration"),
    ],
)
def test_errors_keep_type_and_message(error, kind, message, num_workers):
    loader = ResumableLoader(
        Faulty(error), seed=0, micro_batch_size=2, shuffle=False, num_workers=num_workers
    )
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(kind, match=message) as caught:
        list(islice(batches, 2))
    assert loader.samples == 2
    if num_workers:
        assert "__getitem__" in str(caught.value.__cause__), "the worker's traceback is shown"
        printed = user_traceback(caught.value.with_traceback(None))
        assert printed.count("Traceback") == 1, "it is not shown twice"
