"""Skips updates whose loss or gradient norm is an outlier."""

from functools import partial

import torch

from launcher.errors import ConfigError
from launcher.hooks.interval import IntervalHook
from launcher.hooks.state import reject_flat_buffers
from launcher.hooks.view import State, TrainerView
from launcher.process import ranks
from launcher.types import PositiveFloat, PositiveInt

MIN_DEVIATION = 1e-3
"""Lower bound on the standard deviation, as a fraction of the mean: nearly constant values have no
outliers."""


class SkipSpikesHook(IntervalHook):
    """Skips the updates whose loss or gradient norm is an outlier.

    An outlier is more than `sigmas` standard deviations above the mean of the last `window`
    accepted steps. The step still counts: schedule, data and counters continue as usual.

    The device decides, by values that all ranks share, and the host does not wait for it. The hook
    logs `spikes/skipped`, the number since the run began. The trainer itself skips steps that are
    not finite, which are not part of the window.

    Args:
        warmup: the number of accepted steps before the first one is judged; at most `window`.
        max_in_row: after this many consecutive skipped steps the next one is accepted, since it is
            a new level and not a spike.
        loss: judge the loss, as a mean over all ranks.
        grad_norm: judge the norm before clipping.
        interval: steps between two logged lines, at which the device's decisions are read.
    """

    provides = ("spikes/",)

    def __init__(
        self,
        sigmas: PositiveFloat = 6.0,
        window: PositiveInt = 128,
        warmup: PositiveInt = 64,
        max_in_row: PositiveInt = 5,
        loss: bool = True,
        grad_norm: bool = True,
        interval: PositiveInt = 10,
    ):
        if warmup > window:
            raise ConfigError(
                f"hooks.skip_spikes.warmup={warmup}: must be at most window={window}."
            )
        if not (loss or grad_norm):
            raise ConfigError(
                "hooks.skip_spikes.loss=false: nothing is judged; set loss or grad_norm to true."
            )
        self.sigmas = sigmas
        self.window = window
        self.warmup = warmup
        self.max_in_row = max_in_row
        self.interval = interval
        self._is_judged = torch.tensor([loss, grad_norm])
        self._is_attached = False
        self._values = torch.zeros(2, window)
        """Losses and norms of accepted steps, in a ring."""
        self._accepted, self._in_row, self._skipped, self._last = torch.zeros(4, dtype=torch.int64)
        self._reported = 0

    def on_start(self, trainer: TrainerView) -> None:
        reject_flat_buffers(trainer, "hooks.skip_spikes", "gradients")
        if trainer.strategy.veto is not None and not self._is_attached:
            raise ConfigError(
                "hooks.skip_spikes: another hook decides on updates; leave one of them out."
            )
        trainer.strategy.veto = partial(self._judge, trainer)
        self._is_attached = True

    @torch.no_grad()
    def _judge(self, trainer: TrainerView, norm: torch.Tensor) -> torch.Tensor:
        """Return whether this step is a spike; otherwise it is added to the window."""
        self._to(norm.device)
        loss = torch.stack(trainer.step_info["loss"]).mean().float()
        # With lanes, each rank has the losses of all.
        if trainer.strategy.lanes is None:
            loss = ranks.sum_over_ranks(loss) / ranks.world_size()
        current = torch.stack([loss, norm.float()])
        filled = self._accepted.clamp(max=self.window)
        is_filled = torch.arange(self.window, device=norm.device) < filled
        count = filled.clamp(min=1)
        mean = (self._values * is_filled).sum(1) / count
        variance = ((self._values - mean[:, None]).square() * is_filled).sum(1) / count
        deviation = torch.maximum(variance.sqrt(), MIN_DEVIATION * mean.abs())
        is_above = (current > mean + self.sigmas * deviation) & self._is_judged
        is_finite = current.isfinite().all()
        can_skip = (self._accepted >= self.warmup) & (self._in_row < self.max_in_row)
        is_spike: torch.Tensor = is_finite & can_skip & is_above.any()
        is_accepted = is_finite & ~is_spike

        at = (self._accepted % self.window).view(1)
        entry = torch.where(is_accepted, current[:, None], self._values.index_select(1, at))
        self._values = self._values.index_copy(1, at, entry)
        self._accepted = self._accepted + is_accepted
        self._skipped = self._skipped + is_spike
        self._in_row = torch.where(is_finite, (self._in_row + 1) * is_spike, self._in_row)
        self._last = self._last.masked_fill(is_spike, trainer.step)
        return is_spike

    def _to(self, device: torch.device) -> None:
        if self._values.device != device:
            for name in "_values", "_is_judged", "_accepted", "_in_row", "_skipped", "_last":
                setattr(self, name, getattr(self, name).to(device))

    def report(self, trainer: TrainerView) -> None:
        skipped, last = torch.stack([self._skipped, self._last]).tolist()
        trainer.log({"spikes": {"skipped": skipped}})
        if skipped > self._reported:
            trainer.logger.warning(
                "Updates skipped as spikes of loss or gradient: %d since the last report, %d in"
                " all, the last at step %d.",
                skipped - self._reported,
                skipped,
                last,
            )
        self._reported = skipped

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        counters = torch.stack([self._accepted, self._in_row, self._skipped, self._last])
        values = self._values.clone()
        saved = {"values": values, "counters": counters, "reported": self._reported}
        state_dict["skip_spikes"] = saved

    def on_load_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        saved = state_dict.get("skip_spikes")
        if saved is None or saved["values"].shape != self._values.shape:
            return
        self._values = saved["values"].clone()
        self._reported = saved["reported"]
        self._accepted, self._in_row, self._skipped, self._last = saved["counters"].clone()
