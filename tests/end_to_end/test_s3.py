"""The remote copy of checkpoints on a real S3 server, moto's, through s3fs: also while requests
fail."""

import shutil
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shlex import split

import pytest

from launcher.checkpoint.remote import RemoteStore
from launcher.checkpoint.saver import SaveFailed
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError
from support.runner import ENVIRONMENT, launch, run_folder, stop_at
from support.s3_server import KEY, ConfigIssue, S3Server
from support.stores import save

pytestmark = pytest.mark.skipif(
    not (find_spec("moto") and find_spec("s3fs")),
    reason="needs moto and s3fs; torch-launcher[dev] has them",
)

# Few and short attempts: how a client waits is not tested here.
CLIENT = {"retries": {"max_attempts": 1}, "read_timeout": 1, "connect_timeout": 5}
PART = 5 << 20
INTERNAL = ("500 Internal Server Error", "InternalError")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket, and s3fs's defaults: what FSSPEC_S3_... set for a user."""
    import fsspec
    import s3fs

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    options = KEY | {
        "endpoint_url": server.url,
        "config_kwargs": CLIENT,
        "default_block_size": PART,
    }
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"bucket-{uuid.uuid4()}"
    fs = s3fs.S3FileSystem()
    fs.mkdir(name)
    yield name
    server.faults.clear()
    s3fs.S3FileSystem.clear_instance_cache()


def value(store: RemoteStore) -> float:
    """A value of the newest checkpoint, as a machine with an empty disk finds it."""
    shutil.rmtree(store.root)
    newest = RemoteStore(store.root, store.url).newest_valid()
    assert newest is not None
    return float(StoredCheckpoint(newest[0]).read("model/w").reshape(-1)[0])


def test_save_tidy_fetch_and_roll_back(tmp_path: Path, bucket: str) -> None:
    store = RemoteStore(tmp_path / "here", f"s3://{bucket}/runs/me")
    assert store.newest_valid() is None
    for step in (1, 2, 3, 4):
        save(store, step, best=step == 1, keep=1)
    assert store.remote_steps() == [1, 3, 4]
    save(store, 4, value=8.0)
    assert value(store) == 8.0
    assert store.abandon(3) == ["abandoned-step-00000004"] and store.remote_steps() == [1, 3]
    assert value(store) == 3.0
    names = " ".join(store.fs.ls(f"{bucket}/runs/me", detail=False))
    assert "abandoned-step-00000004" in names


@pytest.mark.parametrize(
    "fault",
    [
        ConfigIssue("PUT", "shard", *INTERNAL, count=1),
        ConfigIssue("PUT", "manifest", "503 Slow Down", "SlowDown", count=2),
        ConfigIssue("PUT", "shard", "cut", count=1),
        ConfigIssue("PUT", "partNumber=2", "cut", count=1),
        ConfigIssue("PUT", "state", "hang", count=1, seconds=2.0),
        ConfigIssue("GET", "list-type", "503 Slow Down", "SlowDown", count=2),
    ],
    ids=lambda fault: f"{fault.method}-{fault.path.pattern}-{fault.how.split()[0]}",
)
def test_a_fault_that_passes_is_not_noticed(
    tmp_path: Path, server: S3Server, bucket: str, fault: ConfigIssue
) -> None:
    store = RemoteStore(tmp_path / "here", f"s3://{bucket}/me")
    server.faults.append(fault)
    save(store, 1, size=(3 * PART // 4 if "part" in fault.path.pattern else 4))
    assert fault.done and value(store) == 1.0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (ConfigIssue("PUT", "shard", "403 Forbidden", "AccessDenied"), "PermissionError"),
        (ConfigIssue("PUT", "manifest", *INTERNAL), "InternalError|500"),
        (ConfigIssue("PUT", "partNumber=2", "cut"), "rank 0"),
    ],
    ids=["no-permission", "always-500", "always-cut"],
)
def test_a_copy_that_fails_leaves_the_previous_one(
    tmp_path: Path, server: S3Server, bucket: str, fault: ConfigIssue, reason: str
) -> None:
    store = RemoteStore(tmp_path / "here", f"s3://{bucket}/me")
    save(store, 1)
    server.faults.append(fault)
    with pytest.raises(SaveFailed, match=reason):
        save(store, 2, size=3 * PART // 4)
    assert store.remote_steps() == [1] and store.steps() == [1, 2]
    server.faults.clear()
    again = RemoteStore(store.root, store.url)
    newest = again.newest_valid()  # the next start makes up for the copy
    assert newest is not None and newest[1].step == 2 and again.remote_steps() == [1, 2]
    assert value(again) == 2.0


@pytest.mark.parametrize(
    "answer", [("403 Forbidden", "AccessDenied"), INTERNAL], ids=["403", "500"]
)
def test_a_store_that_does_not_answer_is_no_empty_one(
    tmp_path: Path, server: S3Server, bucket: str, answer: tuple[str, str]
) -> None:
    save(RemoteStore(tmp_path / "here", f"s3://{bucket}/me"), 1)
    server.faults.append(ConfigIssue("GET", "list-type", *answer))
    with pytest.raises(ConfigError, match="cannot be reached"):
        RemoteStore(tmp_path / "empty", f"s3://{bucket}/me").newest_valid()
    assert not (tmp_path / "empty").exists()


def test_a_missing_bucket_is_rejected_and_not_created(tmp_path: Path, bucket: str) -> None:
    store = RemoteStore(tmp_path / "here", "s3://no-such-bucket/me")
    with pytest.raises(ConfigError, match="no bucket no-such-bucket; create it first"):
        store.newest_valid()
    assert not store.fs.exists("no-such-bucket")


def test_a_damaged_copy_is_set_aside(tmp_path: Path, bucket: str) -> None:
    store = RemoteStore(tmp_path / "here", f"s3://{bucket}/me")
    for step in (1, 2):
        save(store, step)
    (shard,) = store.fs.glob(f"{bucket}/me/step-00000002-*/shard-*")
    store.fs.pipe_file(shard, store.fs.cat_file(shard)[:-1] + b"x")
    assert value(store) == 1.0
    assert len(store.fs.glob(f"{bucket}/me/corrupt-step-00000002*")) == 1


def test_a_command_resumes_on_another_disk(
    tmp_path: Path, server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = split(
        "model=mlp data=digits data.batch_size=60 trainer.max_steps=20"
        " hooks.checkpointing.interval=5"
    )
    there = f"hooks.checkpointing.remote=s3://{bucket}/all"
    for name, value in (KEY | {"endpoint_url": server.url}).items():
        monkeypatch.setitem(ENVIRONMENT, f"FSSPEC_S3_{name.upper()}", value)
    fault = ConfigIssue("PUT", "step-00000005", "503 Slow Down", "SlowDown", count=3)
    server.faults.append(fault)
    first = launch(tmp_path, *run, there, *stop_at(13))
    assert first.returncode == 143 and fault.done == 3, first.output
    shutil.rmtree(run_folder(tmp_path))
    second = launch(tmp_path, *run, there)
    assert second.returncode == 0 and "Fetched step-00000013" in second.output, second.output
