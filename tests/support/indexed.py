"""The samples that the loaders really gave: a dataset whose samples carry their index, and a hook
that notes them."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from launcher import BaseHook


class Indexed:
    """`size` samples of two numbers, the first of them the index, and a class."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index), 1.0]), index % 2


class Stream(IterableDataset[Any]):
    def __init__(self, size: int):
        self.samples = Indexed(size)

    def __iter__(self) -> Any:
        return (self.samples[index] for index in range(len(self.samples)))


class Resumable(Stream):
    """A stream with a state, which notes what each process reads in a file of its own."""

    def __init__(self, size: int, folder: str):
        super().__init__(size)
        self.folder, self.next = Path(folder), 0

    def __iter__(self) -> Any:
        while self.next < len(self.samples):
            self.next += 1
            with (self.folder / f"{os.getpid()}.txt").open("a") as file:
                file.write(f"{self.next - 1}\n")
            yield self.samples[self.next - 1]
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Noting(BaseHook):
    """Appends a line for each batch of each rank: the step, and the indices of its samples."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def on_batch(self, trainer: Any, batch: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        line = json.dumps({"step": trainer.step, "indices": batch[0][:, 0].int().tolist()})
        with (self.folder / f"rank-{trainer.strategy.ranks.rank}.jsonl").open("a") as file:
            file.write(f"{line}\n")


def noted(folder: Path) -> dict[int, list[int]]:
    """The indices of each step, sorted, over all ranks."""
    steps: dict[int, list[int]] = {}
    for file in folder.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            steps.setdefault(entry["step"], []).extend(entry["indices"])
    return {step: sorted(indices) for step, indices in steps.items()}
