"""Reading ahead: whose bytes are in the page cache afterwards, and what cannot be read."""

import ctypes
import mmap
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

from launcher.checkpoint import read_ahead as module
from launcher.checkpoint.read_ahead import read_ahead
from launcher.rundir.folder import RunFolder, step_name

SIZE = 5 << 20


@pytest.fixture
def run(monkeypatch):
    """A run on a disk; the folder of other tests may be in memory."""
    monkeypatch.setattr(module, "MIN_BYTES", SIZE - 1)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield RunFolder(Path(folder) / "run")


def store(run: RunFolder, step: int, shards: int, size: int = SIZE) -> list[Path]:
    """Make a checkpoint, of which nothing is in the page cache."""
    folder = run.checkpoints / step_name(step)
    folder.mkdir(parents=True)
    (folder / "manifest.json").touch()
    files = [folder / f"shard-{number:05d}.safetensors" for number in range(shards)]
    for file in files:
        with file.open("wb") as opened:
            opened.write(bytes(size))
            opened.flush()
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached(file):
            pytest.skip("/var/tmp is in memory here")
    return files


def cached(file: Path) -> int:
    """Return how many bytes of a file are in the page cache."""
    size = file.stat().st_size
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    with file.open("rb") as opened:
        view = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY)
    start = ctypes.addressof(ctypes.c_char.from_buffer(view))
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), pages) == 0
    return mmap.PAGESIZE * sum(page & 1 for page in pages.raw)


def let_read(run: RunFolder, limit: float = 20.0) -> None:
    """Read ahead until the thread has ended by itself."""
    with read_ahead(run):
        until = time.monotonic() + limit
        while is_reading() and time.monotonic() < until:
            time.sleep(0.002)
        assert not is_reading()


def is_reading() -> bool:
    return any(thread.name == "checkpoint-read-ahead" for thread in threading.enumerate())


RANKS = [
    # shards, ranks, rank, rank on its node; the shard that it reads
    (1, 1, 0, 0, 0),
    (2, 2, 1, 1, 1),
    (4, 4, 2, 0, 2),  # the first rank of the second node
    (1, 4, 2, 0, 0),
    (1, 4, 3, 1, None),  # its node's other rank reads it
    (2, 4, 3, 1, 1),  # saved by fewer ranks
    (4, 2, 1, 1, 1),
]


@pytest.mark.parametrize(("shards", "world", "rank", "local", "expected"), RANKS)
def test_a_rank_reads_one_shard_of_the_newest_checkpoint(
    run, monkeypatch, shards, world, rank, local, expected
):
    for name, number in {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": local}.items():
        monkeypatch.setenv(name, str(number))
    older, newest = store(run, 1, shards), store(run, 2, shards)
    let_read(run)
    read = [number for number, file in enumerate(newest) if cached(file) == SIZE]
    assert read == ([] if expected is None else [expected])
    assert not sum(map(cached, [*older, *newest])) - SIZE * len(read)


def test_a_second_context_continues(run):
    (file,) = store(run, 1, 1)
    let_read(run)
    with file.open("ab") as opened:
        opened.truncate(SIZE * 3)
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    let_read(run)
    assert cached(file) == SIZE * 2


def test_memory_that_the_ranks_of_a_node_do_not_have_is_not_filled(run, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(1 << 40))
    (file,) = store(run, 1, 1)
    let_read(run)
    assert not cached(file)


def test_small_files_are_left_alone(run):
    (file,) = store(run, 1, 1, size=SIZE - mmap.PAGESIZE)
    let_read(run)
    assert not cached(file)


def make_gone(file: Path) -> None:
    file.unlink()


def make_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def make_a_dead_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("elsewhere")


def make_a_file_of_the_folder(file: Path) -> None:
    os.rename(file.parents[1], file.parents[2] / "moved")
    file.parents[1].touch()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "change",
    [
        make_gone,
        make_a_pipe,
        make_a_dead_link,
        make_a_file_of_the_folder,
    ],
)
def test_what_cannot_be_read_is_left_to_the_restore(run, change):
    (file,) = store(run, 1, 1)
    change(file)
    let_read(run)


def test_the_thread_ends_with_the_context(run):
    store(run, 1, 1)
    with pytest.raises(RuntimeError, match="the build"), read_ahead(run):
        raise RuntimeError("the build failed")
    assert not is_reading()
