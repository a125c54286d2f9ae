"""Runs as MLflow's own client stores them, each step once."""

import contextlib
import itertools
import math
import posixpath
import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import ConfigError
from launcher.rundir.record import RunRecord
from launcher.trackers.base import Names
from launcher.trackers.follower import list_not_sent
from launcher.trackers.mlflow import MlflowTracker, clean
from support.mlflow_database import copy_database
from support.pictures import png
from support.tracked import WrittenRun


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path):
    copy_database(tmp_path / "mlflow.db")
    run = WrittenRun(
        tmp_path / "name" / "abcd1234",
        optimizer={"lr": 0.1, "betas": [0.9, 0.99]},
        paths={"outputs": "x"},
        tracker={"mlflow": {}},
    )
    yield run
    run.lock.release()


@pytest.fixture
def client(run, tmp_path):
    from mlflow.tracking import MlflowClient  # takes seconds

    return MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")


def only_run(client, experiment: str = "launcher"):
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return run


class Killed(BaseException):
    pass


def client_with(at_call):
    """Return MLflow's client, which calls `at_call(number, is_done)` before and after each call."""
    from mlflow.tracking import MlflowClient

    numbers = itertools.count()

    class Client(MlflowClient):
        def __getattribute__(self, name: str):
            method = super().__getattribute__(name)
            if name.startswith("_") or not callable(method):
                return method

            def call(*args, **options):
                number = next(numbers)  # of the outer call, before its inner calls
                at_call(number, False)
                try:
                    return method(*args, **options)
                finally:
                    at_call(number, True)

            return call

    return Client


def log_attempt(run: WrittenRun, attempt: int) -> None:
    """Each attempt computes all steps again, at other times."""
    run.folder.metrics_path.unlink(missing_ok=True)
    for step in (0, 10, 20):
        times = {"time": 9000.0 * attempt + step, "train/step_time": step + attempt / 7}
        run.log(step, **times, **{"train/loss": 1 / (1 + step)})


def test_rows_are_sent_once_wherever_follower_and_machine_are_lost(
    run, client, monkeypatch, tmp_path
):
    """The process dies after each call, and before a call if it has just stored something."""
    import mlflow.tracking

    options = {"artifacts": ["export"], "registered_model_name": "classifier", "model": "export"}
    stored: list[object] = [None]
    points: list[tuple[int, bool]] = []

    def first_attempt(name: str, at_call) -> WrittenRun:
        mine = WrittenRun(tmp_path / "name" / name)
        mine.folder.export.mkdir()
        (mine.folder.export / "model.safetensors").write_bytes(b"weights")
        log_attempt(mine, 1)
        with monkeypatch.context() as patched:
            patched.setattr(mlflow.tracking, "MlflowClient", client_with(at_call))
            with contextlib.suppress(Killed):
                mine.mirror(MlflowTracker(**options))
        return mine

    def note(number: int, is_done: bool) -> None:
        file = tmp_path / "name" / "whole" / ".trackers" / "mlflow.json"
        now = file.read_bytes() if file.exists() else None
        if is_done or now != stored[-1]:
            points.append((number, is_done))
        stored.append(now)

    first_attempt("whole", note).lock.release()
    assert len([point for point in points if point[1]]) > 15 and (0, True) in points
    for point in points:

        def kill(*at: object, point=point) -> None:
            if at == point:
                raise Killed

        mine = first_attempt("run-{}-{}".format(*point), kill)
        log_attempt(mine, 2)
        mine.mirror(MlflowTracker(**options))
        mine.lock.release()
        runs = client.search_runs(["1"], f"attributes.run_name = 'name/{mine.folder.path.name}'")
        (stored_run,) = [each.info for each in runs]
        assert stored_run.status == "FINISHED"
        for key in ("train/loss", "train/step_time"):
            history = client.get_metric_history(stored_run.run_id, key)
            assert [each.step for each in history] == [0, 10, 20], point
        assert len(client.search_model_versions(f"run_id='{stored_run.run_id}'")) == 1, point


def test_a_batch_that_was_interrupted_is_sent_to_its_own_server_only(run, client, tmp_path):
    run.log(0, 10, 20)
    run.mirror(MlflowTracker(), "running", close=False)
    copy_database(tmp_path / "other.db")
    assert run.opened(MlflowTracker(tracking_uri=f"sqlite:///{tmp_path}/other.db")) == -1


def test_a_run_over_two_attempts(run, client):
    run.log(0, 10, 20)
    tracker = MlflowTracker()
    run.mirror(tracker, "running", close=False)
    run.end("preempted", step=20)
    run.mirror(MlflowTracker(), "preempted")
    assert tracker.address.startswith("sqlite:///")
    first = only_run(client)
    assert (first.info.status, first.info.run_name) == ("KILLED", "name/abcd1234")
    run.begin(start_step=20)
    run.log(30, **{"train/loss": "nan", "val/a@b": "inf"})
    run.end()
    run.mirror(MlflowTracker())
    last = only_run(client)
    assert (last.info.run_id, last.info.status) == (first.info.run_id, "FINISHED")
    assert [last.data.tags[f"launcher.{key}"] for key in ("step", "state")] == ["30", "completed"]
    history = client.get_metric_history(last.info.run_id, "train/loss")
    assert [(each.step, each.timestamp) for each in history] == [
        (s, 1000_000 + 1000 * s) for s in (0, 10, 20, 30)
    ]
    assert [each.value for each in history][:3] == [1.0, 1 / 11, 1 / 21]
    assert math.isnan(history[3].value)
    assert "val/a_b" in last.data.metrics
    assert last.data.params == {
        "optimizer.lr": "0.1", "optimizer.betas": "[0.9, 0.99]", "paths.outputs": "x",
        "run.name": "name",
        "run.id": "abcd1234",
    }  # fmt: skip


def test_a_run_that_will_continue_has_not_ended(run, client):
    run.log(0)
    run.end("paused", step=0)
    for state in ("paused", "queued"):
        run.mirror(MlflowTracker(), state)
        stored = only_run(client)
        assert (stored.info.status, stored.data.tags["launcher.state"]) == ("SCHEDULED", state)
        assert stored.info.end_time is None


def test_options(run, client, tmp_path, monkeypatch):
    run.log(0)
    (run.folder.path / "images" / "0").mkdir(parents=True)
    (run.folder.path / "images" / "0" / "x.png").write_bytes(png(3, 2))
    run.log_media(0, kind="image", key="x", path="images/0/x.png")
    run.log_media(0, kind="text", key="answer", text="grüße")
    run.folder.export.mkdir()
    (run.folder.export / "model.safetensors").write_bytes(b"weights")
    run.end()
    options = {
        "experiment": "mine", "name": "n", "tags": {"a//b": "a"},
        "registered_model_name": "classifier", "model": "export",
    }  # fmt: skip
    run.mirror(MlflowTracker(**options))
    run.mirror(MlflowTracker(**options))  # adds nothing
    stored = only_run(client, "mine")
    assert (stored.info.run_name, stored.data.tags["a/b"]) == ("n", "a")
    (version,) = client.search_model_versions("name='classifier'")
    assert client.get_model_version_by_alias("classifier", "export").version == version.version
    artifacts = Path(stored.info.artifact_uri.removeprefix("file://"))
    assert artifacts.is_relative_to(tmp_path / "mlflow-artifacts" / "mine")
    assert (artifacts / "export" / "model.safetensors").read_bytes() == b"weights"
    flavors = yaml.safe_load((artifacts / "export" / "MLmodel").read_text())["flavors"]
    assert callable(import_module(flavors["python_function"]["loader_module"])._load_pyfunc)
    assert (artifacts / "images" / "0" / "x.png").read_bytes() == png(3, 2)
    assert (artifacts / "texts" / "0" / "answer.txt").read_text() == "grüße"


def test_where_it_is_kept(run, tmp_path, monkeypatch):
    """A server that was chosen once counts later, when the variable is not set."""
    tracker = MlflowTracker()
    run.tracked(tracker)
    assert tracker.uri == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host")
    assert tracker.uri == "http://host"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert tracker.uri == "http://host"
    other = MlflowTracker(tracking_uri="http://other")
    run.tracked(other)
    assert other.uri == "http://other"


def test_a_run_that_waits_in_a_queue(run, client):
    run.folder.record_path.unlink()
    RunRecord(run.folder).queue()
    assert run.opened(MlflowTracker()) == -1 and only_run(client).info.run_name == "name/abcd1234"


@settings(max_examples=50)
@given(st.lists(st.text(alphabet="a./_ (é\n", max_size=9) | st.text(max_size=260), unique=True))
def test_each_name_is_accepted_and_no_two_are_one(names):
    name = Names(clean, {})
    sent = [name(each) for each in names]
    assert len(set(sent)) == len(names) and [name(each) for each in names] == sent
    for text in sent:
        normal = posixpath.normpath(text)
        assert re.fullmatch(r"[/\w.\- :]+", text) and len(text) <= 250
        assert normal == text and normal != "." and not normal.startswith(("..", "/"))


ODD_NAMES = ["/gen", "a//b", "../x", "t(s)/g", "t_s_/g", "x" * 400]


def test_a_run_with_names_that_mlflow_rejects_is_sent_whole(run, client, tmp_path):
    odd = WrittenRun(
        tmp_path / "name" / "odd", model={"opts": {"C#": 1, "C+": 2, "n/a//b": 3, "/": 4}}
    )
    metrics = {f"train/{name}": float(number) for number, name in enumerate(ODD_NAMES)}
    odd.log(0, 10, **metrics)
    odd.mirror(MlflowTracker(), "running")
    odd.log(20, **metrics)
    odd.mirror(MlflowTracker())
    odd.lock.release()
    sent = only_run(client)
    assert sent.info.status == "FINISHED"
    assert sorted(sent.data.metrics.values()) == sorted(metrics.values())
    for name in sent.data.metrics:
        history = client.get_metric_history(sent.info.run_id, name)
        assert [row.step for row in history] == [0, 10, 20]
    assert {"train/t_s_/g", "train/t_s_/g_2", "train/gen", "train/a/b"} < set(sent.data.metrics)
    values = [value for key, value in sent.data.params.items() if key.startswith("model.opts")]
    assert sorted(values) == ["1", "2", "3", "4"]


def test_what_mlflow_rejects_is_named_and_the_rest_is_sent(run, client):
    """A time before 1970 is rejected."""
    run.log(0, 10, **{f"train/{number}": 1.0 for number in range(5)})
    run.log(20, time=-5.0, **{"train/bad": 1.0})
    run.log(30, **{"train/5": 1.0})
    tracker = MlflowTracker()
    run.mirror(tracker)
    sent = only_run(client)
    assert sent.info.status == "FINISHED"
    assert sorted(sent.data.metrics) == [f"train/{number}" for number in range(6)]
    (message,) = list_not_sent({"mlflow": tracker})
    assert message.startswith("Tracker mlflow: not sent, since the service rejects it: train/bad (")


def test_a_name_of_a_model_that_mlflow_rejects_is_found_at_the_start():
    MlflowTracker(registered_model_name="m").check("t")
    with pytest.raises(ConfigError, match=r"^t\.registered_model_name='a/b': "):
        MlflowTracker(registered_model_name="a/b").check("t")
