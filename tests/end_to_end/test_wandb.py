"""Runs as W&B's own client sends them to a server, and steps that are sent again."""

import asyncio
import math
import os
import re
import signal
import time
from pathlib import Path

import pytest

from launcher.errors import ConfigError
from launcher.trackers.lines import MetricsReader
from launcher.trackers.wandb import WandbTracker
from support.pictures import png
from support.tracked import WrittenRun
from support.waiting import wait_for
from support.wandb_server import WandbServer


@pytest.fixture(scope="module")
def shared_server():
    with WandbServer() as server:
        yield server


@pytest.fixture
def server(shared_server, monkeypatch):
    for store in (shared_server.runs, shared_server.files, shared_server.artifacts):
        store.clear()
    shared_server.mode, shared_server.stopped = "ok", False
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    return shared_server


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NETRC", raising=False)


@pytest.fixture
def run(tmp_path):
    run = WrittenRun(
        tmp_path / "name" / "abcd1234",
        seed=3,
        paths={"outputs": "x", "kept": 1},
        tracker={"wandb": {"project": "p"}},
    )
    yield run
    run.lock.release()


def tracker_of(run: WrittenRun, server: WandbServer, **options) -> WandbTracker:
    settings = {
        "base_url": server.url, "init_timeout": 20, "finish_timeout": 20, "x_disable_stats": True
    }  # fmt: skip
    settings |= options.pop("settings", {})
    tracker = WandbTracker(settings=settings, **options)
    run.tracked(tracker)
    return tracker


def mirror(run: WrittenRun, server: WandbServer, state: str = "completed", **options) -> dict:
    """Everything of the run; what the server then has of it."""
    run.mirror(tracker_of(run, server, **options), state)
    (arrived,) = server.runs.values()
    return arrived


def values(config: dict) -> dict:
    return {key: node["value"] for key, node in config.items() if key != "_wandb"}


def test_everything_of_a_run_arrives(run, server, monkeypatch):
    monkeypatch.setenv("WANDB_TAGS", "b,c")
    run.log(0, 10, 20)
    run.log(30, **{"train/loss": "nan", "val/loss": 0.5})
    (run.folder.path / "images" / "10").mkdir(parents=True)
    (run.folder.path / "images" / "10" / "x.png").write_bytes(png(3, 2, alpha=0))
    run.log_media(10, kind="image", key="val/x", path="images/10/x.png")
    run.log_media(10, kind="histogram", key="weights", counts=[1, 3], edges=[0.0, 1.0, 3.0])
    run.log_media(10, kind="text", key="answer", text="a <b>")
    run.folder.export.mkdir()
    (run.folder.export / "model.safetensors").write_bytes(b"weights")
    run.record.data["best"] = {"metric": "val/loss", "value": 0.5, "step": 30}
    run.end()
    options = {
        "name": "mine", "group": "g", "job_type": "j", "tags": ["a", "b"], "notes": "n",
        "image_format": "jpeg", "artifacts": ["export"],
        "init": {"save_code": False},
    }  # fmt: skip
    arrived = mirror(run, server, **options)
    assert [line["_step"] for line in arrived["history"]] == [0, 10, 20, 30]
    assert [line["_timestamp"] for line in arrived["history"]] == [1000, 1010, 1020, 1030]
    assert math.isnan(arrived["history"][3]["train/loss"])
    image = arrived["history"][1]["val/x"]
    assert (image["format"], image["width"], image["height"]) == ("jpg", 3, 2)
    assert arrived["history"][1]["weights"]["bins"] == [0, 1, 3]
    assert arrived["history"][1]["answer"]["_type"] == "html-file"
    assert values(arrived["config"]) == {
        "seed": 3, "paths": {"outputs": "x", "kept": 1}, "run": {"name": "name", "id": "abcd1234"}
    }  # fmt: skip
    keys = ("displayName", "groupName", "jobType", "notes", "tags")
    assert {key: arrived["upsert"][key] for key in keys} == {
        "displayName": "mine", "groupName": "g", "jobType": "j", "notes": "n",
        "tags": ["a", "b", "c"],
    }  # fmt: skip
    assert (arrived["summary"]["best/val/loss"], arrived["summary"]["best/step"]) == (0.5, 30)
    assert arrived["exit"] == 0
    (artifact,) = server.artifacts
    assert artifact["artifactCollectionName"] == "name-abcd1234-export"
    assert server.files["/artifact/model.safetensors"] == b"weights"


def test_a_resumed_run_is_the_same_run(run, server):
    run.log(0, 10, 20)
    run.end("preempted", signal="SIGTERM", step=20)
    arrived = mirror(run, server, "preempted", artifacts=["best", "last"])
    assert [line["_step"] for line in arrived["history"]] == [0, 10]
    assert arrived["exit"] == 1 and arrived["preempting"]
    run.begin(start_step=20)
    run.log(30)
    run.end()
    assert mirror(run, server) is arrived
    assert [line["_step"] for line in arrived["history"]] == [0, 10, 20, 30]
    assert arrived["exit"] == 0 and arrived["overwritten"] == 0


def test_a_killed_run_has_failed_until_it_is_queued(run, server):
    run.log(0, 10, 20)
    arrived = mirror(run, server, "killed")
    assert arrived["exit"] == 1 and not arrived["preempting"]
    assert mirror(run, server, "queued")["exit"] == 0


def test_a_server_that_hangs_is_left_after_a_while(run, server):
    server.mode = "hang"
    tracker = tracker_of(run, server, settings={"init_timeout": 1})
    with pytest.raises(Exception, match=r"deadline|time"):
        tracker.open()
    server.mode = "ok"
    assert tracker.open() == -1
    tracker.close("running")


def test_steps_that_the_server_rejected_are_reported_and_sent_again(run, server, monkeypatch):
    """wandb drops the rest of a history after such a rejection, and `finish` does not raise."""
    monkeypatch.setattr("launcher.trackers.wandb.ARRIVAL_CHECKS", 1)
    run.log(*range(0, 30, 10))
    tracker = tracker_of(run, server)
    lines = MetricsReader(run.folder, tracker.open())
    tracker.write(lines.read())
    server.mode = "403"
    run.log(*range(30, 60, 10))
    run.end()
    tracker.write(lines.read(final=True))
    with pytest.raises(Exception, match=r"403|not to 50"):
        tracker.close("completed")
    server.mode = "ok"
    with pytest.raises(ConnectionError, match="not to 50"):
        tracker._check_arrival()
    arrived = mirror(run, server)
    assert [line["_step"] for line in arrived["history"]] == [*range(0, 60, 10)]


def test_an_artifact_that_did_not_arrive_is_sent_again(run, server):
    """The follower and wandb's own process are lost before `finish` has returned."""
    run.log(0)
    run.folder.export.mkdir()
    (run.folder.export / "model.safetensors").write_bytes(b"weights")
    run.end()
    tracker = tracker_of(run, server, artifacts=["export"], settings={"finish_timeout": 1})
    run.mirror(tracker, close=False)
    server.mode = "no uploads"
    with pytest.raises(TimeoutError):
        tracker.close("completed")
    kill_core()
    tracker._give_up()
    server.mode = "ok"
    server.files.clear()
    mirror(run, server, artifacts=["export"])
    assert server.files["/artifact/model.safetensors"] == b"weights"
    sent = len(server.artifacts)
    mirror(run, server, artifacts=["export"])
    assert len(server.artifacts) == sent


def test_a_dead_client_process_is_started_again(run, server):
    """SLURM signals every process of a job, wandb's own too."""
    run.log(0, 10, 20)
    tracker = tracker_of(run, server)
    lines = MetricsReader(run.folder, tracker.open())
    tracker.write(lines.read())
    kill_core()
    with pytest.raises(Exception):  # noqa: B017 - which one is up to wandb
        for step in range(100):
            tracker.write([{"step": 20 + step, "time": 0.0, "train/loss": 1.0}])
            time.sleep(0.05)
    run.end()
    run.mirror(tracker)
    (arrived,) = server.runs.values()
    assert [line["_step"] for line in arrived["history"]] == [0, 10, 20]
    assert [line["train/loss"] for line in arrived["history"]] == [1, 1 / 11, 1 / 21]


def kill_core() -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_core = b"wandb-core" in path.read_bytes() and parent(path.parent) == os.getpid()
        except OSError:
            continue
        if is_core:
            os.kill(int(path.parent.name), signal.SIGKILL)


def parent(process: Path) -> int:
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


def test_the_stop_button_stops_the_training_process(run, server, monkeypatch):
    from wandb.sdk.lib import run_stopping

    def sleep(seconds):
        return asyncio.sleep(0.1)

    # Without it the client asks every 15 s.
    monkeypatch.setattr(run_stopping, "_SLEEP", sleep, raising=False)
    received = []
    before = signal.signal(signal.SIGTERM, lambda *_: received.append("SIGTERM"))
    try:
        tracker = tracker_of(run, server)
        tracker.open()
        server.stopped = True
        wait_for(lambda: received)
        tracker.close("running")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received[0] == "SIGTERM"


def test_a_run_on_another_machine_cannot_be_stopped_from_here(run, caplog):
    tracker = WandbTracker()
    run.tracked(tracker)
    run.end()
    tracker.stop()
    assert "is not running on this machine" in caplog.text


@pytest.mark.parametrize(("options", "variables", "expected"), [
    ({}, {}, ("launcher", None, "sweep-1")),
    ({}, {"PROJECT": "p", "ENTITY": "e", "RUN_GROUP": "g"}, ("p", "e", "g")),
    (
        {"project": "q", "entity": "f", "group": "h"}, {"PROJECT": "p", "ENTITY": "e"},
        ("q", "f", "h"),
    ),
])  # fmt: skip
def test_where_a_run_is_kept(tmp_path, monkeypatch, options, variables, expected):
    run = WrittenRun(tmp_path / "n" / "a", run={"name": "n", "sweep": "sweep-1"})
    for name, value in variables.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    tracker = WandbTracker(**options)
    run.tracked(tracker)
    chosen = tracker._choose_names("abcd-1")
    assert (chosen["project"], chosen["entity"], chosen["group"]) == expected
    assert chosen["id"] == "abcd-1"
    run.lock.release()


def test_a_key_from_any_place_will_do(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("machine other.org\n login user\n password x\n")
    with pytest.raises(ConfigError, match=r"^tracker.wandb: no API key for api.wandb.ai; run"):
        WandbTracker().check("tracker.wandb")
    WandbTracker(settings={"base_url": "https://other.org"}).check("tracker.wandb")
    (home / ".config" / "wandb").mkdir(parents=True)
    (home / ".config" / "wandb" / "settings").write_text(
        "[default]\nbase_url = https://other.org\n"
    )
    WandbTracker().check("tracker.wandb")
    monkeypatch.setenv("WANDB_BASE_URL", "https://third.org")
    with pytest.raises(ConfigError, match=r"third\.org"):
        WandbTracker().check("tracker.wandb")
    monkeypatch.setenv("WANDB_API_KEY", "x")
    WandbTracker().check("tracker.wandb")


@pytest.mark.parametrize(("options", "variables", "says"), [
    ({"project": "a/b"}, {}, "tracker.wandb.project=a/b: has a /, which W&B does not take"),
    ({"project": "x" * 129}, {}, "has 129 characters; W&B takes at most 128."),
    ({"group": "x" * 129}, {}, "tracker.wandb.group=x"),
    ({"name": "x" * 129}, {}, "tracker.wandb.name=x"),
    ({}, {"WANDB_PROJECT": "a:b"}, "tracker.wandb.project=a:b: has a :"),
    ({}, {"WANDB_RUN_GROUP": "x" * 129}, "tracker.wandb.group=x"),
])  # fmt: skip
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_names_that_wandb_does_not_take_are_rejected_at_the_start(
    monkeypatch, options, variables, says, mode
):
    monkeypatch.setenv("WANDB_API_KEY", "x")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=re.escape(says)):
        WandbTracker(mode=mode, **options).check("tracker.wandb")


def test_sync_does_not_advise_itself():
    with pytest.raises(ConfigError) as raised:
        WandbTracker(mode="offline").check("tracker.wandb", to_sync=True)
    assert "run `wandb login`, or set WANDB_API_KEY." in str(raised.value)
    assert "sync" not in str(raised.value)


def test_offline_needs_a_key_only_to_sync(monkeypatch):
    tracker = WandbTracker(mode="offline")
    assert tracker.waits_for_sync
    tracker.check("tracker.wandb")
    with pytest.raises(ConfigError):
        tracker.check("tracker.wandb", to_sync=True)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert WandbTracker().waits_for_sync
    assert not WandbTracker(mode="online").waits_for_sync
