"""`media.jsonl` and `images/`: each step once over stops, kills and rollbacks; images and
histograms of every kind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from launcher import BaseHook, CheckpointingHook, ConfigError, ImageFileLoggerHook, MediaHook
from launcher.hooks.media import file_name, histogram, to_image
from support.toy import GOOD, Toy

Image = pytest.importorskip("PIL.Image")


class Draws(BaseHook):
    """Logs an image and a histogram after each step, and can end the training there as a kill
    would."""

    def __init__(self, kill_at: int = 0):
        self.kill_at = kill_at

    def on_after_step(self, trainer: Any) -> None:
        trainer.log_images({"val": {"x": np.full((2, 3), trainer.step, np.uint8)}})
        trainer.log_histograms({"w": torch.arange(4.0) + trainer.step})
        trainer.log_text({"t": f"step {trainer.step}"})
        if trainer.step == self.kill_at:
            raise KeyboardInterrupt


def train(workspace: Path, max_steps: int, *hooks: BaseHook, every: int = 2, **options: Any) -> Toy:
    trainer = Toy(
        [*hooks, CheckpointingHook(every), MediaHook()],
        max_steps,
        workspace,
        batches=[GOOD],
        **options,
    )
    trainer.train()
    return trainer


def rows(workspace: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (workspace / "media.jsonl").read_text().splitlines()]


def places(workspace: Path) -> list[tuple[int, str]]:
    return [(row["step"], row["key"]) for row in rows(workspace)]


def test_media_have_each_step_once_after_a_kill_and_a_resume(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, 9, Draws(kill_at=5))
    assert (tmp_path / "images" / "5").exists()
    train(tmp_path, 4, Draws())  # from step 4, with nothing left to do: what is later goes
    assert places(tmp_path) == [(step, key) for step in range(1, 5) for key in ("val/x", "w", "t")]
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["1", "2", "3", "4"]
    train(tmp_path, 6, Draws())
    assert places(tmp_path) == [(step, key) for step in range(1, 7) for key in ("val/x", "w", "t")]
    for row in rows(tmp_path)[::3]:
        assert row["kind"] == "image" and row["path"] == f"images/{row['step']}/val/x.png"
        assert np.asarray(Image.open(tmp_path / row["path"])).tolist() == [[row["step"]] * 3] * 2
    *_, last, text = rows(tmp_path)
    assert text["text"] == "step 6"
    assert sum(last["counts"]) == 4
    assert len(last["edges"]) == len(last["counts"]) + 1
    assert last["edges"][0] == 6.0


def test_media_hook_writes_nothing_in_a_dry_run_or_where_nothing_is_logged(tmp_path):
    class Dry(BaseHook):
        def on_after_step(self, trainer: Any) -> None:
            trainer.log_images({"x": np.zeros((1, 1))}, dry_run=True)
            trainer.log_histograms({"x": [1.0]}, dry_run=True)
            trainer.log_text({"x": "y"}, dry_run=True)
            with pytest.raises(ValueError, match="log_text a/b: int is not a text"):
                trainer.log_text({"a": {"b": 3}})

    train(tmp_path, 2, Dry())
    assert not (tmp_path / "media.jsonl").exists() and not (tmp_path / "images").exists()


def test_a_disk_that_takes_nothing_stops_no_training(tmp_path, caplog):
    (tmp_path / "images").write_text("in the way")
    assert train(tmp_path, 3, Draws()).step == 3
    assert places(tmp_path) == [(step, key) for step in (1, 2, 3) for key in ("w", "t")]
    assert caplog.text.count("could not be written") == 1


def test_image_format_may_depend_on_the_key(tmp_path):
    class Photos(BaseHook):
        def on_after_step(self, trainer: Any) -> None:
            image = Image.fromarray(np.full((2, 2, 4), 9, np.uint8))
            trainer.log_images({"val": {"photo": image, "mask": image}})

    hook = MediaHook(lambda key: "jpg" if key == "photo" else "png")
    Toy([Photos(), hook], 2, tmp_path, batches=[GOOD]).train()
    assert [row["path"] for row in rows(tmp_path)][2:] == [
        "images/2/val/photo.jpg",
        "images/2/val/mask.png",
    ]
    assert Image.open(tmp_path / "images/2/val/photo.jpg").format == "JPEG"
    with pytest.raises(ConfigError, match="image_format=xyz: pillow does not write it"):
        MediaHook("xyz")


def test_image_file_logger_hook_writes_the_folder_of_trainloop(tmp_path):
    Toy([Draws(), ImageFileLoggerHook()], 2, tmp_path, batches=[GOOD]).train()
    assert (tmp_path / "visualizations/2/val/x.png").is_file()
    assert not (tmp_path / "images").exists()


@pytest.mark.parametrize(
    "value, mode, pixel",
    [
        (np.full((2, 3), 7, np.uint8), "L", 7),
        (np.full((2, 3), 300), "L", 255),
        (np.full((2, 3, 1), 0.5), "L", 128),
        (np.array([[[1.0, 0.0, np.nan]] * 3] * 2), "RGB", (255, 0, 0)),
        (
            torch.tensor([2.0, -1.0, 0.2, 1.0]).bfloat16()[:, None, None].expand(4, 2, 3),
            "RGBA",
            (255, 0, 51, 255),
        ),
        (torch.ones(2, 3, dtype=torch.bool), "L", 255),
        (Image.new("P", (3, 2)), "P", 0),
    ],
)
def test_images_of_every_kind(value, mode, pixel):
    image = to_image("x", value)
    assert (image.mode, image.size, image.getpixel((0, 0))) == (mode, (3, 2), pixel)


@pytest.mark.parametrize(
    "value", [torch.zeros(2, 3, 4), np.zeros((4, 2, 2)), np.zeros(3), np.zeros((0, 3)), "a.png", 1]
)
def test_media_hook_reports_an_array_that_is_not_an_image(value):
    with pytest.raises(ValueError, match=r"log_images val/x: .* is not an image; pass a PIL image"):
        to_image("val/x", value)


def test_histograms():
    counts, edges = histogram(
        "x", torch.tensor([1.0, 2.0, float("nan"), float("inf")], requires_grad=True), 2
    )
    assert (counts, edges) == ([1, 1], [1.0, 1.5, 2.0])
    assert histogram("x", torch.full((2,), float("nan")), 9) == ([], [])
    assert sum(histogram("x", [True, False, True], 2)[0]) == 3
    with pytest.raises(ValueError, match="log_histograms x: "):
        histogram("x", "text", 2)


def test_key_of_media_cannot_leave_the_folder():
    assert file_name("val/x-1") == "val/x-1"
    parts = file_name("/../a b/ä").split("/")
    assert len(parts) == 4 and len(set(parts)) == 4 and not {"", ".", ".."} & set(parts)
    assert file_name("a b") != file_name("a_b")


def test_a_key_that_is_logged_twice_in_a_step_keeps_its_last_value(tmp_path):
    class Twice(BaseHook):
        def on_after_step(self, trainer: Any) -> None:
            for number in (1, 9):
                trainer.log_images({"x": np.full((1, 1), number, np.uint8)})
                trainer.log_histograms({"w": np.arange(number)})
                trainer.log_text({"t": str(number)})

    train(tmp_path, 1, Twice())
    image, histogram, text = rows(tmp_path)
    assert np.asarray(Image.open(tmp_path / image["path"])).tolist() == [[9]]
    assert sum(histogram["counts"]) == 9 and text["text"] == "9"
