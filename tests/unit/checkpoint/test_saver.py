"""Writing in a thread: what is written, what failed, and a writer that hangs."""

import os
import threading
from dataclasses import replace

import pytest
import torch

from launcher.checkpoint import saver as module
from launcher.checkpoint.manifest import verify
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import SaveFailed, Saver, check_storable
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError
from launcher.process.ranks import Ranks
from support.stores import payload


def saver(store: CheckpointStore, keep: int = 0, patience: float = 600.0) -> Saver:
    return Saver(store, Ranks(), Retention(keep_previous=keep), patience)


@pytest.fixture
def wake(monkeypatch):
    """The first fsync of a writer hangs until this is set."""
    wake, real, first = threading.Event(), os.fsync, threading.Lock()

    def fsync(fd: int) -> None:
        if threading.current_thread().name == "checkpoint-writer" and first.acquire(blocking=False):
            wake.wait(60)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(module, "POLL", 0.01)
    return wake


def test_training_may_change_its_tensors_once_they_are_copied(tmp_path, wake, monkeypatch):
    """And waiting for the writer counts as progress."""
    monkeypatch.setattr(module, "progress", wake.set)
    live = torch.ones(3)
    state = {"tensors": {"model/w": live}, "rank_state": {"a": live}, "global_state": {"a": live}}
    writer = saver(CheckpointStore(tmp_path), patience=5)
    writer.save(replace(payload(1), **state), wait=False)
    live.zero_()
    assert writer.in_flight and not (tmp_path / "step-00000001").exists()
    writer.finish()
    assert not writer.in_flight
    stored = StoredCheckpoint(tmp_path / "step-00000001")
    copies = stored.read("model/w"), (stored.rank_state(0) or {})["a"], stored.meta["a"]
    assert all(torch.equal(copy, torch.ones(3)) for copy in copies)


def test_a_failure_is_raised_once(tmp_path):
    writer = saver(CheckpointStore(tmp_path))
    broken = replace(payload(2), texts={"no/such/folder": ""})
    for end in (writer.finish, writer.close):
        writer.save(broken, wait=False)
        with pytest.raises(SaveFailed, match="rank 0: FileNotFoundError"):
            end()
        end()
    writer.save(payload(3), wait=False)
    writer.close()
    assert CheckpointStore(tmp_path).steps() == [3] and not writer.must_wait


@pytest.mark.parametrize("ends", [True, False])
def test_a_writer_that_wakes_up_again_commits_nothing(tmp_path, wake, ends):
    """A run that ends waits only so long for it, and a run that continues saves again."""
    writer = saver(CheckpointStore(tmp_path), patience=0.2)
    writer.save(payload(1), wait=False)
    sleeper = writer._writing.thread  # type: ignore[union-attr]
    with pytest.raises(SaveFailed, match=r"hung for 0\.2 s"):
        writer.close() if ends else writer.finish()
    if not ends:
        writer.save(payload(1, 2.0), wait=False)
        assert not writer.in_flight, "it waits now"
    wake.set()
    assert sleeper is not None
    sleeper.join(60)
    assert not sleeper.is_alive()
    assert sorted(os.listdir(tmp_path)) == ([] if ends else ["latest", "step-00000001"])
    if not ends:
        stored = StoredCheckpoint(tmp_path / "step-00000001")
        assert torch.equal(stored.read("model/w"), torch.full((4,), 2.0))


def test_a_corrupt_newest_leaves_the_best_and_one_more(tmp_path):
    store = CheckpointStore(tmp_path)
    writer = saver(store, keep=1)
    for step in (1, 2, 3):
        writer.save(payload(step, best_step=1), wait=True)
    (store.path(3) / "state.json").write_bytes(b"{}")
    newest = store.newest_valid()
    assert newest is not None and newest[1].step == 2
    writer.save(payload(4), wait=True)
    assert store.steps() == [1, 2, 4] and store.resolve_link("best") == 1
    for step in store.steps():
        verify(store.path(step))
    assert (tmp_path / "corrupt-step-00000003").is_dir()


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.eye(2).to_sparse(), "layout sparse_coo"),
        (torch.empty(2, dtype=torch.uint4), "dtype uint4"),
    ],
)
def test_saver_rejects_a_state_that_cannot_be_stored_before_training(tensor, reason):
    with pytest.raises(ConfigError, match=f"^model: layer.weight has {reason}, which"):
        check_storable({"model/layer.weight": tensor}, {}, "SGD")
    with pytest.raises(ConfigError, match="a is an object, which a checkpoint cannot hold"):
        check_storable({}, {"a": object()}, "SGD")
