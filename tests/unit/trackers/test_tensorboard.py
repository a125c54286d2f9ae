import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.hparams import metadata

from launcher.trackers.tensorboard import FILE, TensorBoardTracker
from support.pictures import png
from support.tracked import WrittenRun


@pytest.fixture
def run(tmp_path):
    run = WrittenRun(
        tmp_path / "name" / "abcd1234",
        overrides=["optimizer.lr=0.1", "optimizer.fused=true", "model=mlp", "run.tag=x"],
        optimizer={"lr": 0.1, "fused": True},
        model={"size": 3},
    )
    yield run
    run.lock.release()


def mirror(run: WrittenRun, state: str = "completed", close=True, **options) -> TensorBoardTracker:
    tracker = TensorBoardTracker(**options)
    run.mirror(tracker, state, close)
    return tracker


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(
        str(folder), size_guidance={"scalars": 0, "images": 0, "histograms": 0, "tensors": 0}
    )
    return events.Reload()


def scalars(folder: Path, tag: str = "train/loss") -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def test_metrics_with_their_steps_and_times(run):
    run.log(0, 10, 20)
    run.log(30, **{"train/loss": "nan", "val/loss": 2.0})
    tracker = mirror(run)
    events = read(tracker.path.parent).Scalars("train/loss")
    assert [(event.step, event.wall_time) for event in events] == [
        (s, 1000.0 + s) for s in (0, 10, 20, 30)
    ]
    assert events[1].value == pytest.approx(1 / 11)
    assert math.isnan(events[3].value)
    assert scalars(tracker.path.parent, "val/loss") == [(30, 2.0)]


@pytest.mark.parametrize("damage", [b"", b"half a record", b"\x18\x00\x00\x00\x00\x00\x00\x00"])
def test_uncommitted_events_are_written_again(run, damage):
    """The follower is killed between the event file and its position."""
    run.log(0, 10, 20)
    tracker = mirror(run, "running", close=False)
    with open(tracker.path, "ab") as file:
        file.write(damage)
    assert run.opened(TensorBoardTracker()) == 10
    mirror(run)
    assert [step for step, _ in scalars(tracker.path.parent)] == [0, 10, 20]
    loader = LegacyEventFileLoader(str(tracker.path))  # what --load_fast=false reads with
    assert len(list(loader.Load())) == 1 + 1 + 3 + 1  # version, session start, lines, session end


def test_a_position_without_its_file_begins_again(run):
    run.log(0, 10)
    folder = mirror(run).path.parent
    (folder / FILE).write_bytes(b"short")
    assert run.opened(TensorBoardTracker()) == -1
    mirror(run)
    assert [step for step, _ in scalars(folder)] == [0, 10]


def test_texts_images_and_histograms(run):
    run.log(0)
    (run.folder.path / "images" / "0").mkdir(parents=True)
    (run.folder.path / "images" / "0" / "x.png").write_bytes(png(3, 2))
    run.log_media(0, kind="text", key="answer", text="grüße <b>")
    run.log_media(0, kind="image", key="val/x", path="images/0/x.png")
    run.log_media(0, kind="histogram", key="weights", counts=[1, 3], edges=[0.0, 1.0, 3.0])
    events = read(mirror(run).path.parent)
    (text,) = events.Tensors("answer")
    assert [each.decode() for each in text.tensor_proto.string_val] == ["grüße <b>"]
    (image,) = events.Images("val/x")
    size = (image.width, image.height)
    assert (image.step, size, image.encoded_image_string) == (0, (3, 2), png(3, 2))
    (histogram,) = events.Histograms("weights")
    value = histogram.histogram_value
    assert (value.num, value.min, value.max, value.sum) == (4, 0.0, 3.0, 6.5)
    assert (value.bucket_limit, value.bucket) == ([1.0, 3.0], [1.0, 3.0])


def test_hyperparameters(run):
    run.log(0)
    events = read(mirror(run).path.parent)
    content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    info = metadata.parse_session_start_info_plugin_data(content)
    values = {key: getattr(value, value.WhichOneof("kind")) for key, value in info.hparams.items()}
    assert values == {"optimizer.lr": 0.1, "optimizer.fused": True, "model": "mlp"}


@pytest.mark.parametrize("state", ["paused", "queued"])
def test_the_session_of_a_run_that_will_continue_has_not_ended(run, state):
    run.log(0)
    folder = mirror(run, state).path.parent
    assert metadata.SESSION_END_INFO_TAG not in read(folder).Tags()["tensors"]
    tracker = mirror(run)
    assert metadata.SESSION_END_INFO_TAG in read(folder).Tags()["tensors"]
    size = tracker.path.stat().st_size
    assert mirror(run).path.stat().st_size == size, "a second sync adds nothing"


def test_two_names_that_become_one_are_two_series(run):
    run.log(0, 10, **{"val/a/loss": 1.0, "val/a.loss": 2.0})
    mirror(run, "running", namespace_separator=".")
    run.log(20, **{"val/a.loss": 2.0, "val/a/loss": 1.0})
    tracker = mirror(run, namespace_separator=".")
    assert scalars(tracker.path.parent, "val.a.loss") == [(0, 1.0), (10, 1.0), (20, 1.0)]
    assert scalars(tracker.path.parent, "val.a.loss_2") == [(0, 2.0), (10, 2.0), (20, 2.0)]
