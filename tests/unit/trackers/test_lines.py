import json
import os
import random

import pytest

from launcher.hooks.line_file import append
from launcher.rundir.folder import RunFolder
from launcher.rundir.step_lines import drop_lines_after
from launcher.trackers.lines import MetricsReader


def write(folder: RunFolder, *steps: int, name: str = "metrics.jsonl", **values) -> None:
    rows = [
        {"step": step, "time": float(step), **(values or {"train/loss": step / 7})}
        for step in steps
    ]
    append(folder.path / name, "".join(json.dumps(row) + "\n" for row in rows).encode())


def steps(lines) -> list[int]:
    return [line["step"] for line in lines]


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def test_half_a_line_waits_for_its_end_and_garbage_is_skipped(folder):
    write(folder, 0, 10)
    append(folder.metrics_path, b'{"step": 20, "ti')
    lines = MetricsReader(folder, -1)
    assert steps(lines.read(final=True)) == [0, 10]
    append(folder.metrics_path, b'me": 1.0}\nno json\n[1]\n{"step": "x"}\n')
    write(folder, 30)
    assert steps(lines.read(final=True)) == [20, 30]


def test_a_held_line_that_was_dropped_is_not_sent(folder):
    write(folder, 0, 10)
    lines = MetricsReader(folder, -1)
    assert steps(lines.read()) == [0]
    drop_lines_after(folder.metrics_path, 0)
    write(folder, 10, **{"train/loss": 1.0, "val/loss": 2.0})
    assert lines.read(final=True) == [
        {"step": 10, "time": 10.0, "train/loss": 1.0, "val/loss": 2.0}
    ]


def test_the_file_may_vanish(folder):
    write(folder, 0, 10)
    lines = MetricsReader(folder, -1)
    lines.read()
    os.unlink(folder.metrics_path)
    assert lines.read(final=True) == []


def test_media_come_with_the_line_of_their_step(folder):
    write(folder, 0, 10, 20)
    write(folder, 10, name="media.jsonl", kind="image", key="x", path="images/10/x.png")
    write(folder, 13, 13, name="media.jsonl", kind="histogram", key="w", counts=[1], edges=[0, 1])
    write(folder, 25, name="media.jsonl", kind="image", key="x", path="images/25/x.png")
    lines = MetricsReader(folder, -1)
    first, second, third = lines.read()
    assert [item["key"] for item in second["media"]] == ["x"]
    assert second["train/loss"] == 10 / 7
    assert "media" not in first
    assert (third["step"], len(third["media"])) == (13, 2)
    assert steps(lines.read(final=True)) == [20, 25]


@pytest.mark.parametrize("seed", range(8))
def test_every_step_once_whatever_happens(folder, seed):
    """Training is stopped and resumed at random moments, and so is the reader."""
    draw = random.Random(seed)
    sent, step, lines = [], -1, MetricsReader(folder, -1)
    folder.metrics_path.touch()
    while step < 300:
        match draw.choice("ttttrrbk"):
            case "t":
                written = range(step + 1, step + draw.randint(2, 9))
                write(folder, *written)
                step = written[-1]
            case "r":
                sent += lines.read()
            case "b":
                step = max(-1, step - draw.randint(0, 20))
                drop_lines_after(folder.metrics_path, step)
            case "k":
                lines = MetricsReader(folder, max(steps(sent), default=-1))
    sent += lines.read(final=True)
    assert sent == [
        {"step": each, "time": float(each), "train/loss": each / 7} for each in range(step + 1)
    ]
