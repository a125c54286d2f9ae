"""Checkpoints that are copied to a second home: an object store in memory, a folder behind
fsspec."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest
from launcher.checkpoint.remote import RemoteStore
from launcher.checkpoint.saver import SaveFailed
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError
from support.stores import save


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield f"memory://{tmp_path.name}" if request.param == "memory" else f"file://{tmp_path}/there"
    fsspec.filesystem("memory").store.clear()


def value(store: RemoteStore) -> float:
    """A value of the newest checkpoint."""
    found = store.newest_valid()
    assert found is not None
    return float(StoredCheckpoint(found[0]).read("model/w")[0])


def elsewhere(store: RemoteStore) -> RemoteStore:
    """The same run on a machine with an empty disk."""
    shutil.rmtree(store.root)
    return RemoteStore(store.root, store.url)


def test_another_machine_resumes(tmp_path: Path, url: str) -> None:
    store = RemoteStore(tmp_path / "here", url)
    assert store.newest_valid() is None
    for step in (1, 2, 3, 4):
        save(store, step, best=step == 1, keep=1)
    assert store.steps() == store.remote_steps() == [1, 3, 4]
    save(store, 4, value=8.0)
    assert store.remote_steps() == [1, 3, 4]
    other = elsewhere(store)
    assert value(other) == 8.0
    assert other.steps() == [4] and other.resolve_link("latest") == 4
    save(other, 5, keep=1)
    assert other.remote_steps() == [1, 4, 5], "the best stays, though it is not on this machine"


def folders(store: RemoteStore) -> set[str]:
    """All that has a file there, without the hashes in the names."""
    found = {
        path.partition(f"{store.base.strip('/')}/")[2].partition("/")
        for path in store.fs.find(store.base)
    }
    return {first.rpartition("-")[0] or first for first, _, _ in found}


def test_remote_copy_of_a_removed_checkpoint_is_removed(tmp_path: Path, url: str) -> None:
    store = RemoteStore(tmp_path / "here", url)
    save(store, 1, keep=0)
    store.fs.makedirs(f"{store.base}/step-00000002-0123abcd", exist_ok=True)
    # An upload was killed.
    store.fs.pipe_file(f"{store.base}/step-00000002-0123abcd/state.json", b"{}")
    save(store, 3, best=True, keep=0)
    assert folders(store) == {"step-00000003", "best"}


def test_a_rollback_there(tmp_path: Path, url: str) -> None:
    store = RemoteStore(tmp_path / "here", url)
    for step in (1, 2):
        save(store, step)
    for _ in range(2):  # the same checkpoint has the same name
        save(store, 3)
        assert store.abandon(2)[0].startswith(
            "abandoned-step-00000003"
        ) and store.remote_steps() == [1, 2]
        assert folders(store) == {"step-00000001", "step-00000002", "abandoned-step-00000003"}
    assert value(elsewhere(store)) == 2.0


def test_a_copy_that_failed_is_made_up_for(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = RemoteStore(tmp_path / "here", url)
    save(store, 1)
    save(CheckpointStore(store.root), 2)  # only here
    assert store.remote_steps() == [1] and value(store) == 2.0 and store.remote_steps() == [1, 2]
    assert value(store) == 2.0 and "Fetched" not in caplog.text


def test_an_abandoned_writer_ends_its_upload(tmp_path: Path, url: str) -> None:
    def abandoned() -> None:
        if store.steps():  # it is committed here, and being copied
            raise TimeoutError

    store = RemoteStore(tmp_path / "here", url)
    with pytest.raises(TimeoutError):
        store.commit(store.begin(1), Manifest(1, 1, "none", "sharded"), abandoned)


def test_a_missing_bucket_is_refused_and_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec's memory file system stands in for an object store; `end_to_end/test_s3.py` has a real
    server."""
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "protocol", "s3")
    store = RemoteStore(tmp_path / "here", "memory://no-bucket/me")
    with pytest.raises(ConfigError, match="no bucket no-bucket; create it first"):
        store.newest_valid()
    assert not store.fs.exists("/no-bucket")


@pytest.mark.parametrize(
    "name", ["shard-00000.safetensors", "rank-00000.json", "state.json", "manifest.json"]
)
@pytest.mark.parametrize("damage", ["flip", "delete"])
def test_damage_there_is_found_and_set_aside(
    tmp_path: Path, url: str, name: str, damage: str
) -> None:
    store = RemoteStore(tmp_path / "here", url)
    save(store, 1)
    save(store, 2)
    (file,) = store.fs.glob(f"{store.base}/step-00000002-*/{name}")
    if damage == "delete":
        store.fs.rm_file(file)
    else:
        data = bytearray(store.fs.cat_file(file))
        data[len(data) // 2] ^= 1
        store.fs.pipe_file(file, bytes(data))
    other = elsewhere(store)
    assert value(other) == 1.0
    if (damage, name) != ("delete", "manifest.json"):  # without one it was never a checkpoint
        assert store.fs.glob(f"{store.base}/corrupt-step-00000002-*")
    assert other.remote_steps() == [1] and not list(other.root.glob(".tmp-*"))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_machine_to_which_a_run_returns(tmp_path: Path, url: str, is_damaged: bool) -> None:
    """Another one has trained further. If its checkpoint is damaged, this machine has the
    newest."""
    store, other = (RemoteStore(tmp_path / name, url) for name in ("here", "other"))
    save(store, 1)
    assert value(other) == 1.0
    save(other, 2)
    if is_damaged:
        (file,) = store.fs.glob(f"{store.base}/step-00000002-*/state.json")
        store.fs.pipe_file(file, b"{}")
    assert value(store) == (1.0 if is_damaged else 2.0)


def test_only_damaged_ones_are_an_error(tmp_path: Path, url: str) -> None:
    store = RemoteStore(tmp_path / "here", url)
    save(store, 1)
    (file,) = store.fs.glob(f"{store.base}/*/state.json")
    store.fs.pipe_file(file, b"{}")
    with pytest.raises(CorruptCheckpoint, match="state"):
        elsewhere(store).newest_valid()


@pytest.mark.parametrize("again", [False, True], ids=["a-new-step", "the-same-step"])
def test_an_upload_that_ends_anywhere_leaves_a_valid_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """At every call that changes something there: afterwards the newest is the one before or the
    new one."""
    counts: list[int] = []
    for k in range(1, 40):
        url = f"memory://upload-{again}-{k}"
        store = RemoteStore(tmp_path / str(k), url)
        save(store, 1, value=1.0, keep=0)
        calls = 0

        def ends(real: Any, k: int = k) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls >= k:  # also all later ones: the machine is gone
                    raise ConnectionError("gone")
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ("_open", "rm", "rm_file", "pipe_file", "makedirs"):
                patch.setattr(store.fs, name, ends(getattr(store.fs, name)))
            try:
                save(store, 1 if again else 2, value=2.0, keep=0)
            except SaveFailed as error:
                assert "gone" in str(error)
        assert value(elsewhere(store)) in (1.0, 2.0)
        counts.append(calls)
        if calls < k:
            break
    assert len(counts) > 8 and counts[-1] < len(counts), "all of them were tried"
