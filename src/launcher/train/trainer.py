"""The loop. `BaseTrainer` is subclassed; `Trainer` is the same loop over composed parts.

    train -> build -> restore -> [before_step -> accumulate -> strategy.step -> after_step -> boundary] -> after_train

The loop itself never reads a value from the device: losses, norms and records stay there until a hook reads them at its
interval.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch

from launcher.errors import TrainingError
from launcher.hooks.state import load_hook_states
from launcher.run import deadline, signals
from launcher.run.ranks import maximum
from launcher.run.rng import restore_rng, rng_state
from launcher.strategies.base import NULL
from launcher.strategies.step import DeferredFlag, StepResult
from launcher.strategies.weights import model_tensors
from launcher.train import state as states
from launcher.train.closure import accumulate_for_closure
from launcher.train.parts import TrainerParts
from launcher.train.skipped import check_end, check_none_losses, count_retry, count_skipped
from launcher.train.stopping import Stopping
from launcher.train.targets import target_weights, weigh


class BaseTrainer(TrainerParts):
    """Training by subclass: write the `build_*` methods and `forward`. The loop, accumulation, mixed precision,
    non-finite gradients, state and hooks are here.

    The arguments are those of `TrainerParts`.
    """

    is_training = False
    _pause_is_due = False
    _unsettled: DeferredFlag | None = None

    def train(self) -> None:
        """Train until `max_steps`, `pause_at`, a hook's `state.stop`, or a signal.

        Raises:
            signals.Stop: a signal came; the hooks have saved. It is a SystemExit with code 128 + signal.
            TrainingError: a bound on non-finite gradients or losses of None was exceeded, or training ended in skipped
                updates.
        """
        if not self.is_built:
            self.build()
        rng = rng_state()
        self._stopping, self._pause_is_due = Stopping(self._agreement), False
        has_ended = False
        try:
            self.restore()
            self.fire("on_ready")
            self._run(self.resumed_rng or rng)  # random numbers that hooks have drawn must not affect the first step
            if not self.is_paused:
                self.fire("on_after_train")
            has_ended = True
        except signals.Stop:
            signals.forget()  # the signal has stopped this run, and must not stop a later one in this process
            raise
        except Exception as error:
            self.fire("on_error", error)
            raise
        finally:
            self._close(has_ended)

    def _close(self, has_ended: bool) -> None:
        """Close every hook, also after another has failed to close.

        Raises:
            Exception: the first error, if training itself has ended well; errors that it does not raise are logged.
        """
        errors: list[Exception] = []
        for call in self._events["on_close"]:
            try:
                call(self)
            except Exception as error:
                errors.append(error)
        for other in errors[1:] if has_ended else errors:
            trace = None if isinstance(other, TrainingError) else other
            self.logger.error("At the end: %s: %s", type(other).__name__, other, exc_info=trace)
        if errors and has_ended:
            raise errors[0]

    def restore(self) -> None:
        """Set up the hooks and restore what an earlier attempt saved.

        The order matters: a hook may create its model in `on_before_train`, as a copy of the restored one, and fill it
        in `on_load_state_dict`.
        """
        for hook in self.hooks:
            hook.bind(self.context)
        self.restored = None
        for event in ("on_start", "on_restore", "on_before_train"):
            self._bind_events()  # a hook may have added another, or set a function on one
            self.fire(event)
        self._bind_events()
        if self.restored is not None:
            shared = {"model": model_tensors(self.model), "training_state": self.restored["training_state"]}
            load_hook_states(self, self.restored["hooks"], shared)

    def _run(self, rng: dict[str, Any]) -> None:
        self.is_training = True
        self.model.train()
        self.strategy.zero_grad()
        self._batches.start(self.state)
        self._is_plain = self.strategy.forward_context() is NULL
        self._is_alone = self._agreement.alone
        self._has_logged = True  # by the attempt before, at the step of its checkpoint
        self._may_weigh = self.gradient_accumulation_steps > 1 or not self._is_alone
        self._check_next_forward()
        try:
            restore_rng(rng)
            if self.stop_signal or self._must_pause():
                self._boundary()
            while not (self._pause_is_due or self.state.is_at_end()):
                self._run_step()
                if self.state.is_at_end():
                    check_end(self)
                self._boundary()
        except signals.Interrupted:
            # Nothing of the next step had been computed: the state is that of the boundary before.
            self.step -= 1
            self._batches.rewind()
            self._stopping.ask_again()
            self._boundary()
            raise signals.Stop(signals.received()) from None
        finally:
            self._batches.close()

    # ------------------------------------------------------------------------------------------------------ a step
    def _run_step(self) -> None:
        if self._has_logged:
            self._has_logged = False
            self.fire("on_logged")
        state = self.state
        state.step = step = state.step + 1
        self.step_info = {"loss": [], "records": [], "data_time": [], "non_finite_grad_retry_count": 0}
        epoch = self._epoch
        if epoch is not None and (step == 1 or epoch.is_due(self, step - 1)):
            self.fire("on_epoch_start")
        for call in self._events["on_before_step"]:
            call(self)
        self._batches.mark()
        start = time.perf_counter()
        result = self._attempt()
        while result.retry:
            count_retry(self)
            result = self._attempt()
        info = self.step_info
        info["grad_norm"] = result.grad_norm
        if result.skipped is False:
            self._updated()
        elif result.skipped is True:
            count_skipped(self)
        else:
            self._unsettled = result.skipped
        info["step_time"] = time.perf_counter() - start
        for collected in self._collected:
            collected.append(info)
        for call in self._after_step.at(step, state.is_at_end()):
            call(self)
        if epoch is not None and epoch.is_due(self, step):
            self.fire("on_epoch_end")

    def _attempt(self) -> StepResult:
        if self.strategy.needs_closure:
            accumulate_for_closure(self, self._micro_batches(), self._accumulate)
        else:
            self._accumulate(self._micro_batches() if self._may_weigh else None)
        if self._unsettled is not None:
            self.settle()
        rates = self.step_info["lr"] = []
        for group in self.optimizer.param_groups:
            rate = group["lr"]  # the scheduler changes a tensor in place
            rates.append(rate if type(rate) is float or not isinstance(rate, torch.Tensor) else rate.clone())
        if not self._is_alone:
            self._agreement.begin(signals.received())
        return self.strategy.step()  # clips, updates and zeroes the gradients

    def _accumulate(self, micro_batches: Iterator[tuple[Any, torch.Tensor | None]] | None) -> None:
        """Forward and backward over the micro-batches of one optimizer step; None: over the loader's, unweighted."""
        strategy, info, count = self.strategy, self.step_info, self.gradient_accumulation_steps
        done = none_losses = 0
        while done < count:
            if signals.received():
                deadline.progress()
            if micro_batches is None:
                batch, weight = self._batches.next(info["data_time"], not info["data_time"]), None
            else:
                batch, weight = next(micro_batches)
            for call in self._events["on_batch"]:
                call(self, batch)
            context = strategy.grad_sync(done == count - 1)
            if context is NULL:  # to enter it would cost more than anything else here
                has_loss = self._forward_backward(batch, weight)
            else:
                with context:
                    has_loss = self._forward_backward(batch, weight)
            if has_loss:
                none_losses = 0
                done += 1
            else:
                none_losses += 1
                check_none_losses(self, none_losses)

    def _forward_backward(self, batch: Any, weight: torch.Tensor | None) -> bool:
        """Run forward and backward of a micro-batch; False: it has no loss."""
        if self._is_plain:
            loss, records = self.forward(batch)
        else:
            with self.strategy.forward_context():
                loss, records = self.forward(batch)
        if loss is None:
            return False
        if weight is not None:
            loss, records = weigh(loss, weight), weigh(records, weight)
        info = self.step_info
        info["loss"].append(loss.detach())
        info["records"].append(records)
        self.strategy.backward(loss)
        return True

    def _micro_batches(self) -> Iterator[tuple[Any, torch.Tensor | None]]:
        """Batches, each with its factor if they count by targets. All batches of a step are then fetched before the
        first forward pass, since each factor depends on all of them."""
        count, times, alone = self.gradient_accumulation_steps, self.step_info["data_time"], self._is_alone
        may_interrupt = alone and not times  # before anything has been drawn or computed
        first = self._batches.next(times, may_interrupt)
        if self._may_weigh and (targets := self.num_targets(first)) is not None:
            batches = [first, *(self._batches.next(times, may_interrupt) for _ in range(count - 1))]
            counts = [targets, *(self.num_targets(batch) or 0 for batch in batches[1:])]
            yield from zip(batches, target_weights(counts, self.device), strict=True)
        else:
            yield first, None
        while True:
            yield self._batches.next(times, False), None

    # -------------------------------------------------------------------------------------------------- between steps
    def _boundary(self) -> None:
        """The state is that of a completed step: the moment to save it, and to leave if a signal asks for that."""
        state = self.state
        self._pause_is_due = self.pause_at is not None and self._must_pause()
        stops = bool(self._stopping.signal(state))
        everything = stops or self._pause_is_due or state.is_at_end() or state.needs_boundary
        state.needs_boundary = False
        calls = self._at_boundary.at(state.step, everything)
        for call in calls:
            call(self)
        if (calls or stops) and (signum := self.stop_signal):  # a hook may have been interrupted
            raise signals.Stop(signum)

    def _must_pause(self) -> bool:
        return self.pause_at is not None and self.state.step >= self.pause_at and not self.update_was_skipped()

    @property
    def is_paused(self) -> bool:
        """Whether training ends at the present boundary because of `pause_at`, before its last step."""
        return self._pause_is_due and not self.is_last_step

    @property
    def stop_signal(self) -> int:
        """The signal on which training ends at this boundary, 0 for none; the same on all ranks."""
        return self._stopping.signal(self.state)

    def stop_at_this_boundary(self) -> None:
        """End training here: a signal has interrupted something that the resumed run repeats, so no further step may be
        made. All ranks must call it."""
        self._stopping.stop_here(self.state)

    def settle(self) -> None:
        """Read whether the device skipped the last update, and step the scheduler if it did not. Called before each
        update; it waits for the previous step only."""
        if self._unsettled is not None:
            flag, self._unsettled = self._unsettled, None
            count_skipped(self) if flag.read() else self._updated()

    def _updated(self) -> None:
        self.state.skipped_in_row = 0
        if self.lr_scheduler is not None and not self._steps_by_metric:
            self.lr_scheduler.step()

    def update_was_skipped(self) -> bool:
        """Whether the last update was skipped, other than by a loss scaler that seeks its scale. The state may then be
        broken, and must not be saved. The same on all ranks, which must all call it; it waits for the device."""
        self.settle()
        scales = self.precision.needs_scaler or self.grad_scaler.is_enabled()
        if not self.state.skipped_in_row or not scales:
            return bool(self.state.skipped_in_row)
        is_finite = all(bool(loss.isfinite()) for loss in self.step_info.get("loss", ()))
        return bool(maximum(not is_finite))

    # ------------------------------------------------------------------------------------------------------ its state
    def state_dict(self) -> dict[str, Any]:
        """`model`, `training_state`, and what hooks add, in memory. Tensors are complete under every wrapper."""
        return states.state_dict(self, self.state_dict_options)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states.load_state_dict(self, state, self.state_dict_options)

    def training_state(self) -> dict[str, Any]:
        """Counters, scheduler, scaler and data position: all but model, optimizer and hooks."""
        self.settle()
        return states.training_state(self)

    def load_training_state(self, saved: dict[str, Any]) -> None:
        states.load_training_state(self, saved)
