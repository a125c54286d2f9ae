"""Logs samples, tokens and model FLOPs per second."""

import time
from collections.abc import Callable
from typing import Any

import torch

from launcher.data.batch_samples import DECLARE
from launcher.hooks.flops import forward_flops, peak_tflops
from launcher.hooks.interval import IntervalHook
from launcher.hooks.view import TrainerView
from launcher.process import ranks
from launcher.types import PositiveFloat, PositiveInt


class ThroughputHook(IntervalHook):
    """Logs the throughput over all ranks, as means over the interval without its evaluations.

    The metrics are `throughput/samples_per_second`, if the data loader knows how many samples a
    batch has, `tokens_per_second`, the targets that `num_targets` counts, `tflops_per_second` and
    `mfu`.

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

    changes_numbers = False
    provides = ("throughput/",)

    runs_first = True

    def __init__(
        self,
        interval: PositiveInt = 10,
        flops: bool = True,
        peak_tflops: PositiveFloat | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.interval = interval
        self.flops = flops
        self.peak_tflops = peak_tflops
        self._clock = clock
        self._batch: object = None
        self._flops = 0.0
        """FLOPs of the passes of a micro-batch."""
        self._has_measured = False
        self._targets: torch.Tensor | int | None = None
        """Targets of all ranks in the interval, or None if nobody counts them."""
        self._since: tuple[float, int, int | None] | None = None
        """Time, step and samples at the start of the interval."""
        self._paused_at = 0.0
        self._paused = 0.0

    def on_batch(self, trainer: TrainerView, batch: Any) -> None:
        if not self._has_measured and self._batch is None:
            self._batch = batch

    def on_after_step(self, trainer: TrainerView) -> None:
        if not self._has_measured:
            self._measure(trainer)
        if self._since is None:
            self._restart(trainer, _samples(trainer))
        elif (targets := trainer.step_info.get("num_targets")) is not None:
            self._targets = targets if self._targets is None else self._targets + targets
        super().on_after_step(trainer)

    def _measure(self, trainer: TrainerView) -> None:
        """Count the FLOPs of the attempt's first micro-batch, and log what is not known."""
        batch = self._batch
        self._batch = None
        self._has_measured = True
        if trainer.local_samples is None:
            trainer.logger.info(
                "There is no throughput/samples_per_second: how many samples a batch of %s has is"
                " not known; %s.",
                type(trainer.data_loader).__name__,
                DECLARE,
            )
        if self.flops:
            self._flops = 3 * forward_flops(trainer, batch)
            self._log_peak(trainer)

    def _log_peak(self, trainer: TrainerView) -> None:
        is_gpu = trainer.device.type == "cuda"
        name = torch.cuda.get_device_name(trainer.device) if is_gpu else "CPU"
        precision = trainer.strategy.precision.peak
        source = "hooks.throughput.peak_tflops"
        if self.peak_tflops is None:
            self.peak_tflops = peak_tflops(name, precision)
            source = "dense, by the data sheet"
        text = f"Model FLOPs: {self._flops / 1e9:.4g} GFLOP a micro-batch. "
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

    def _restart(self, trainer: TrainerView, samples: int | None) -> None:
        self._since = self._now(trainer), trainer.step, samples
        self._targets = None
        self._paused = 0.0

    def report(self, trainer: TrainerView) -> None:
        if self._since is None:
            return
        then, first, samples_before = self._since
        if first == trainer.step:
            return
        seconds = max(self._now(trainer) - then - self._paused, 1e-9)
        records = {}
        samples = _samples(trainer)
        if samples is not None and samples_before is not None:
            records["samples_per_second"] = (samples - samples_before) / seconds
        if self._targets is not None:
            records["tokens_per_second"] = float(self._targets) / seconds
        if self._flops:
            micro_batches = (trainer.step - first) * trainer.gradient_accumulation_steps
            tflops = micro_batches * ranks.world_size() * self._flops / seconds / 1e12
            records["tflops_per_second"] = tflops
            if self.peak_tflops is not None:
                records["mfu"] = tflops / (ranks.world_size() * self.peak_tflops)
        if records:
            trainer.log({"throughput": records})
        self._restart(trainer, samples)

    def on_evaluation_start(self, trainer: TrainerView) -> None:
        self._paused_at = self._now(trainer)

    def on_evaluation_end(self, trainer: TrainerView) -> None:
        self._paused += self._now(trainer) - self._paused_at


def _samples(trainer: TrainerView) -> int | None:
    """Return the samples that all ranks have received, or None if that is not known."""
    if trainer.samples is not None:
        return trainer.samples
    counts = ranks.all_gather(trainer.local_samples)
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
