"""A run whose process is killed by SIGKILL at random moments, and restarted each time.

Each attempt is a forked child, so that none of them imports torch again. Prints
the numbers of kills and runs.
"""

import hashlib
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

from launcher import BaseTrainer, CheckpointingHook
from launcher.data.loader import ResumableLoader
from launcher.hooks.base import BaseHook
from launcher.hooks.jsonl import JsonlHook
from launcher.process.rng import seed_all
from support.runner import metrics_of

INTERVAL, STEPS, KILLS = 7, 60, 15


class Samples:
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> torch.Tensor:
        # An augmentation: by sample, whatever the attempt.
        return torch.full((8,), float(index)) + torch.rand(8)


class Tiny(BaseTrainer):
    asynchronous = True

    def build_data_loader(self) -> Any:
        return ResumableLoader(Samples(), seed=1, micro_batch_size=4, seed_samples=True)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def build_hooks(self) -> list[BaseHook]:
        saving = CheckpointingHook(INTERVAL, keep_previous=1, asynchronous=self.asynchronous)
        return [Reached(), JsonlHook(), saving]

    def forward(self, input: torch.Tensor) -> Any:
        loss = self.model(input).square().mean()
        return loss, {}


class Reached(BaseHook):
    """Reports the child's step to the parent, and logs each step's loss."""

    memory: mmap.mmap

    def on_before_train(self, trainer: Any) -> None:
        self.memory[:8] = trainer.step.to_bytes(4, "little") * 2

    def on_after_step(self, trainer: Any) -> None:
        trainer.log({"loss": float(trainer.step_info["loss"][-1])})
        self.memory[4:8] = trainer.step.to_bytes(4, "little")


def attempt(workspace: Path, asynchronous: bool, life: float | None) -> tuple[bool, int, int]:
    """A child trains, and is killed after `life` seconds (None: never). Returns whether it
    completed, and its first and last step."""
    Reached.memory = mmap.mmap(-1, 8)
    child = os.fork()
    if child == 0:
        try:
            seed_all(0)
            Tiny.asynchronous = asynchronous
            Tiny(max_steps=STEPS, workspace=workspace, device="cpu").train()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if life is not None:
        time.sleep(life)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit("an attempt failed")
    begun, reached = (int.from_bytes(Reached.memory[i : i + 4], "little") for i in (0, 4))
    return os.WIFEXITED(status), begun, reached


def final_state(workspace: Path) -> tuple[str, list[Any]]:
    """A hash of what is in the last checkpoint, and the lines of metrics without their times."""
    digest = hashlib.sha256()
    for path in sorted((workspace / "checkpoints" / "latest").iterdir()):
        if path.name not in ("manifest.json", "rank-00000.json"):  # the line of metrics has a time
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest(), metrics_of(workspace)


def main() -> None:
    torch.set_num_threads(1)
    warm = Tiny(max_steps=1, device="cpu")
    warm.build_hooks = list  # type: ignore[method-assign]
    warm.train()  # what is imported late is imported before the forks
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder, kills, runs = Path(name), 0, 0
        seconds = time.perf_counter()
        attempt(folder / "whole", True, None)
        seconds = time.perf_counter() - seconds
        expected = final_state(folder / "whole")
        assert len(expected[1]) == STEPS
        while kills < KILLS:
            runs += 1
            workspace, asynchronous, before = folder / str(runs), bool(runs % 2), 0
            while True:
                is_killed = kills < KILLS
                completed, begun, reached = attempt(
                    workspace, asynchronous, chance.uniform(0, seconds / 3) if is_killed else None
                )
                # What may be lost: an interval; and another while its save has not reached the
                # disk.
                if reached:
                    assert begun >= before - INTERVAL * (2 if asynchronous else 1), (begun, before)
                before = max(reached, 0) or before
                if completed:
                    break
                kills += 1
            assert final_state(workspace) == expected, f"run {runs} ended differently"
            shutil.rmtree(workspace)
        print(f"{kills} kills in {runs} runs, all with the same end")


if __name__ == "__main__":
    main()
