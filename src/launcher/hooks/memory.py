"""Logs the peak memory of each rank."""

import resource
import sys

import torch

from launcher.hooks.interval import IntervalHook
from launcher.hooks.view import TrainerView
from launcher.process import ranks
from launcher.types import PositiveInt

GIB = 1024**3


class MemoryHook(IntervalHook):
    """Measures the peak memory of each rank, in GiB.

    It sets `step_info["max_memory"]` for the progress and logging hooks (with `sync`, the largest).
    It logs `memory/rank_<r>`, the peak of each rank since the previous line.

    On CUDA it is the peak of allocated tensors within a step. On the CPU, it is the peak resident
    set of the process so far. On mps, it is the memory that the driver has allocated after the
    step.

    Args:
        interval: steps between two logged lines.

    Examples:
        >>> class Measuring(Line):
        ...     def build_hooks(self):
        ...         return [MemoryHook(interval=1)]
        >>> trainer = Measuring(max_steps=1, device="cpu")
        >>> trainer.train()
        >>> trainer.state.metrics["memory/rank_0"] > 0
        True
    """

    changes_numbers = False
    provides = ("memory/",)

    runs_first = True

    def __init__(self, interval: PositiveInt = 10):
        self.interval = interval
        self._peak = 0.0

    def on_before_step(self, trainer: TrainerView) -> None:
        if trainer.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(trainer.device)

    def on_after_step(self, trainer: TrainerView) -> None:
        peak = max_memory(trainer.device)
        trainer.step_info["max_memory"] = peak
        self._peak = max(self._peak, peak)
        super().on_after_step(trainer)

    def report(self, trainer: TrainerView) -> None:
        peaks = ranks.all_gather(self._peak)
        self._peak = 0.0
        if any(peaks):
            trainer.log({"memory": {f"rank_{rank}": value for rank, value in enumerate(peaks)}})


def max_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    if device.type == "mps":
        return torch.mps.driver_allocated_memory() / GIB
    # By getrusage(2), the unit is bytes there and KiB elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB
