"""Memory and time of saving a large checkpoint, compared with writing as many bytes.

    python benchmarks/large_checkpoint.py --gigabytes 10

The state is a model's weights and AdamW's moments in fp32, 12 bytes a parameter. `extra` is the
most anonymous memory during the save over that before it. The save ends with all bytes fsynced, and
so does the raw write. Needs the state's size in memory 1.4 times (gradients of one step).
`asynchronous=True` copies the state: `checkpoint.py` measures that.
"""

import argparse
import os
import re
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from launcher import BaseHook, BaseTrainer, CheckpointingHook

PARTS = 16
SAVED_AT = 2
STEPS = 3


class Weights(nn.Module):
    def __init__(self, count: int):
        super().__init__()
        self.parts = nn.ParameterList(
            [nn.Parameter(torch.zeros(count // PARTS)) for _ in range(PARTS)]
        )

    def forward(self) -> torch.Tensor:
        return torch.stack([part[:10].sum() for part in self.parts]).sum()


class Watch(BaseHook):
    """The most memory from the boundary at which the save begins to the end of training."""

    before = 0.0
    peak = 0.0
    seconds = 0.0

    def on_step_boundary(self, trainer: Any) -> None:
        if trainer.step == SAVED_AT:
            trainer.optimizer.zero_grad(set_to_none=True)
            self.before = anonymous_memory()
            self.peak = self.before
            self._add_end, self._start = threading.Event(), time.perf_counter()
            self._thread = threading.Thread(target=self._look)
            self._thread.start()

    def _look(self) -> None:
        while not self._add_end.wait(0.02):
            self.peak = max(self.peak, anonymous_memory())

    def on_before_step(self, trainer: Any) -> None:
        if trainer.step > SAVED_AT and not self.seconds:
            self.seconds = time.perf_counter() - self._start
            self._add_end.set()  # what the next step needs does not count
            self._thread.join()


class Trainer(BaseTrainer):
    count = 0

    def build_data_loader(self) -> Any:
        return [None] * STEPS

    def build_model(self) -> nn.Module:
        return Weights(self.count)

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), foreach=False)

    def build_hooks(self) -> list[BaseHook]:
        self.watch = Watch()
        return [
            self.watch,
            CheckpointingHook(interval=SAVED_AT, asynchronous=False, path="checkpoints"),
        ]

    def forward(self, input: Any) -> Any:
        return self.model(), {}


def anonymous_memory() -> float:
    """Bytes of this process; pages of the file that is written do not count."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) * 1024.0


def raw_write(path: Path, size: float) -> float:
    """Seconds to write and fsync that many bytes."""
    block, written = os.urandom(1 << 20) * 64, 0
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        while written < size:
            written += file.write(block) or 0
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=10.0, help="of state")
    parser.add_argument("--folder", help="where to write; default: the temporary folder")
    arguments = parser.parse_args()
    size = arguments.gigabytes * 1e9
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        raw = raw_write(Path(folder) / "raw", size)
        trainer = Trainer(max_steps=STEPS, workspace=Path(folder) / "run", device="cpu")
        trainer.count = int(size / 12)
        trainer.train()
        watch = trainer.watch
        print(
            f"state {size / 1e9:.1f} GB; raw write {raw:.1f} s; save {watch.seconds:.1f} s; "
            f"extra memory {(watch.peak - watch.before) / size:.0%} of the state"
        )


if __name__ == "__main__":
    main()
