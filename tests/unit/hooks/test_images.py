"""`ImageFileLoggerHook`: trainloop's files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import BaseHook, CheckpointingHook, ImageFileLoggerHook
from support.toy import GOOD, Toy

Image = pytest.importorskip("PIL.Image")


class Draws(BaseHook):
    def on_after_step(self, trainer: Any) -> None:
        image = Image.fromarray(np.full((2, 2, 4), 9, np.uint8))
        trainer.log_images({"val": {"photo": image, "mask": image}}, dry_run=trainer.step == 1)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_format_may_depend_on_the_key_and_a_resume_removes_later_steps(tmp_path: Path) -> None:
    def train(max_steps: int) -> None:
        images = ImageFileLoggerHook(lambda key: "jpg" if key == "photo" else "png")
        Toy([Draws(), CheckpointingHook(2), images], max_steps, tmp_path, batches=[GOOD]).train()

    train(3)
    folder = tmp_path / "visualizations"
    assert files(folder) == [f"{step}/val/{name}" for step in (2, 3) for name in ("mask.png", "photo.jpg")]
    assert Image.open(folder / "2/val/photo.jpg").format == "JPEG"
    (folder / "7").mkdir()
    train(4)
    assert files(folder) == [f"{step}/val/{name}" for step in (2, 3, 4) for name in ("mask.png", "photo.jpg")]
    assert not (folder / "7").exists()


def test_a_disk_that_takes_nothing_stops_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "visualizations").write_text("in the way")
    trainer = Toy([Draws(), ImageFileLoggerHook()], 2, tmp_path, batches=[GOOD])
    trainer.train()
    assert trainer.step == 2 and caplog.text.count("could not be written") == 2


def test_an_unknown_format_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="image_format=xyz: pillow writes no such format"):
        Toy([Draws(), ImageFileLoggerHook("xyz")], 2, tmp_path, batches=[GOOD]).train()
