"""Logs samples, tokens and model FLOPs per second."""

import time
from collections.abc import Callable
from typing import Any

import torch

from launcher.hooks.base import TrainerView
from launcher.hooks.flops import forward_flops, peak_tflops
from launcher.hooks.interval import IntervalHook
from launcher.hooks.records import batch_size, first_tensor
from launcher.process import ranks
from launcher.types import PositiveFloat, PositiveInt


class ThroughputHook(IntervalHook):
    """Logs the throughput over all ranks, as means over the interval without its evaluations.

    The metrics are `throughput/samples_per_second`, `tokens_per_second` (where inputs are integers
    [B, T, ...]), `tflops_per_second` and `mfu`.

    Model FLOPs of a step are three times the FLOPs of a forward pass, which are counted once per
    attempt. A backward pass has twice as many products, and recomputed products do not count
    (Chowdhery et al. 2022, appendix B, arXiv:2204.02311). MFU is their share of the devices' peak
    performance.

    Args:
        interval: steps between two logged lines.
        flops: count model FLOPs.
        peak_tflops: peak performance of one device, in TFLOP/s. Default None: from a table of
            devices. It is logged, and without it there is no MFU.
    """

    runs_first = True

    def __init__(
        self,
        interval: PositiveInt = 10,
        flops: bool = True,
        peak_tflops: PositiveFloat | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.interval, self.flops, self.peak_tflops = interval, flops, peak_tflops
        self._clock = clock
        self._batch: object = None
        self._sizes: dict[str, float] = {}
        """`tokens` and `flops` of a sample."""
        self._micro_batch = 0
        self._since: tuple[float, int, int | None] | None = None
        """Time, step and samples at the start of the interval."""
        self._paused_at = self._paused = 0.0

    def on_batch(self, trainer: TrainerView, batch: Any) -> None:
        if not self._micro_batch and self._batch is None:
            self._batch = batch

    def on_after_step(self, trainer: TrainerView) -> None:
        if not self._micro_batch:
            self._measure(trainer)
        if self._since is None:
            self._restart(trainer)
        super().on_after_step(trainer)

    def _measure(self, trainer: TrainerView) -> None:
        batch, self._batch = self._batch, None
        self._micro_batch = batch_size(batch)
        if (tokens := num_tokens(batch)) is not None:
            self._sizes["tokens"] = tokens / self._micro_batch
        if self.flops:
            forward = forward_flops(trainer, batch)
            self._sizes["flops"] = 3 * forward / self._micro_batch
            self._log_peak(trainer)

    def _log_peak(self, trainer: TrainerView) -> None:
        is_gpu = trainer.device.type == "cuda"
        name = torch.cuda.get_device_name(trainer.device) if is_gpu else "CPU"
        precision, source = trainer.strategy.precision.peak, "hooks.throughput.peak_tflops"
        if self.peak_tflops is None:
            self.peak_tflops, source = peak_tflops(name, precision), "dense, by the data sheet"
        text = f"Model FLOPs: {self._sizes['flops'] / 1e9:.4g} GFLOP a sample. "
        if self.peak_tflops is None:
            text += (
                f"The peak of this device ({name}) is not known: no MFU; set"
                " hooks.throughput.peak_tflops."
            )
        else:
            text += (
                f"MFU is of {self.peak_tflops:g} TFLOP/s for each device ({name}, {precision},"
                f" {source})."
            )
        trainer.logger.info(text)

    def _now(self, trainer: TrainerView) -> float:
        """Return the time once the device has finished its work."""
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        return self._clock()

    def _restart(self, trainer: TrainerView) -> None:
        self._since, self._paused = (self._now(trainer), trainer.step, trainer.samples), 0.0

    def report(self, trainer: TrainerView) -> None:
        if self._since is None:
            return
        then, first, samples_before = self._since
        if first == trainer.step:
            return
        if trainer.samples is None or samples_before is None:
            micro_batches = (trainer.step - first) * trainer.gradient_accumulation_steps
            samples = micro_batches * ranks.world_size() * self._micro_batch
        else:
            samples = trainer.samples - samples_before
        speed = samples / max(self._now(trainer) - then - self._paused, 1e-9)
        records = {"samples_per_second": speed}
        if "tokens" in self._sizes:
            records["tokens_per_second"] = speed * self._sizes["tokens"]
        if "flops" in self._sizes:
            records["tflops_per_second"] = tflops = speed * self._sizes["flops"] / 1e12
            if self.peak_tflops is not None:
                records["mfu"] = tflops / (ranks.world_size() * self.peak_tflops)
        trainer.log({"throughput": records})
        self._restart(trainer)

    def on_evaluation_start(self, trainer: TrainerView) -> None:
        self._paused_at = self._now(trainer)

    def on_evaluation_end(self, trainer: TrainerView) -> None:
        self._paused += self._now(trainer) - self._paused_at


def num_tokens(batch: object) -> int | None:
    """Return the size of a batch's first tensor if that has tokens: integers [B, T, ...]."""
    tensor = first_tensor(batch)
    if tensor is None or tensor.dim() < 2 or tensor.dtype not in (torch.int64, torch.int32):
        return None
    return tensor.numel()
