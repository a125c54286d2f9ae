"""Files of a dataset of one's own, which has no fingerprint: a change of them is reported."""

from pathlib import Path

import pytest

from support import python

DATA = """import torch


class Rows(torch.utils.data.Dataset):
    def __init__(self, file: str):
        self.rows = [float(line) for line in open(file)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.full((64,), self.rows[index]), index % 10
"""
WORDS = (
    "data=custom", "data.dataset._target_=mine.Rows", "+data.dataset.file=rows.txt",
    "model=mlp", "data.num_features=64", "data.num_classes=10", "model.hidden_dim=4",
    "data.batch_size=4", "device=cpu", "strategy=none",
)  # fmt: skip
REPORT = "data: a file that its settings name has another size, time or place"


def project(folder: Path, first: int) -> Path:
    """Make a project with eight rows of data."""
    folder.mkdir()
    (folder / "mine.py").write_text(DATA)
    (folder / "rows.txt").write_text("".join(f"{first + row}\n" for row in range(8)))
    return folder


@pytest.mark.parametrize("pauses", [False, True], ids=["complete already", "resume"])
def test_the_same_command_in_another_project_reports_other_files(pauses, tmp_path):
    """Their outputs are one folder, and the path is relative."""
    first, other = project(tmp_path / "first", 0), project(tmp_path / "other", 9)
    words = (*WORDS, "trainer.max_steps=2", f"paths.outputs={tmp_path}/outputs")
    stop = ("trainer.pause_at=1",) if pauses else ()
    done = python.run("-m", "launcher", *words, *stop, cwd=first, check=True)
    assert REPORT not in done.stdout
    again = python.run("-m", "launcher", *words, *stop, cwd=first, check=True)
    assert "already" in again.stdout and REPORT not in again.stdout
    done = python.run("-m", "launcher", *words, cwd=other, check=True)
    assert REPORT in done.stdout and ("complete already" in done.stdout) != pauses
