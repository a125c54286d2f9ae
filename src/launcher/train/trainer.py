"""The loop. `BaseTrainer` is subclassed; `Trainer` is the same loop over composed parts.

    train -> build -> restore -> [before_step -> accumulate -> strategy.step -> after_step -> boundary] -> after_train

The loop itself never asks the device for a value: losses, norms and records stay where they are until a hook wants them
at its interval.
"""

import itertools
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from launcher.data.plain import PlainLoader, resumable, set_epoch, why_not_exact
from launcher.errors import TrainingError
from launcher.hooks.base import BaseHook, Records, RunContext, TrainState
from launcher.hooks.interval import Interval, steps_per_epoch
from launcher.hooks.records import flatten, format_records
from launcher.hooks.state import InMemory, hook_states, hook_tensors, load_hook_states
from launcher.optim.precision import Precision
from launcher.optim.schedulers import needs_metric
from launcher.run import deadline, ranks, signals
from launcher.run.ranks import Agreement, maximum, world_size
from launcher.run.rng import restore_rng, rng_state
from launcher.strategies.adopted import AdoptedStrategy
from launcher.strategies.base import Strategy
from launcher.strategies.step import DeferredFlag, StepPlan, StepResult
from launcher.strategies.weights import model_tensors, needs_backward, unwrap
from launcher.train.events import Schedule, calls
from launcher.train.targets import target_weights, weigh


class LossNoneWarning(UserWarning):
    """`forward` returned no loss, under a wrapper that needs a backward pass after each forward pass."""


class BaseTrainer:
    """Training by subclass: write the `build_*` methods and `forward`. The loop, accumulation, mixed precision,
    non-finite gradients, state and hooks are here.

    Args:
        max_steps: optimizer steps to train for.
        grad_clip: clip gradients to this 2-norm.
        max_non_finite_grad_retries: repeat a step whose gradient is not finite at most this often, with new batches,
            then raise. None: skip the update and count it; more than `max_skipped_steps` in a row raise.
        mixed_precision: "bf16", "fp16" or None.
        gradient_accumulation_steps: micro-batches per optimizer step; None is 1.
        workspace: the folder for the hooks' files.
        device: None is torch's default device.
        no_sync_accumulate: ranks of a DDP model exchange gradients with the last micro-batch only.
        state_dict_options: a `StateDictOptions`, for `state_dict()`; checkpoints follow its `ignore_frozen_params` and
            `strict`.
        logger: None is the logger "trainer".
        max_skipped_steps: at most this many skipped updates in a row.
        max_none_losses: at most this many losses of None in a row.
        pause_at: `train` returns at this step, saved; the same run resumes from there. A step whose update was skipped
            is not saved, so the next good one pauses.
    Raises:
        ValueError: `mixed_precision` is none of the above.
    """

    def __init__(
        self,
        max_steps: int,
        grad_clip: float | None = None,
        max_non_finite_grad_retries: int | None = None,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int | None = None,
        workspace: Path | str | None = None,
        device: torch.device | str | int | None = None,
        no_sync_accumulate: bool = True,
        state_dict_options: Any = None,
        logger: logging.Logger | None = None,
        *,
        max_skipped_steps: int = 50,
        max_none_losses: int = 100,
        pause_at: int | None = None,
    ):
        if mixed_precision not in (None, "bf16", "fp16"):
            raise ValueError(f"mixed_precision={mixed_precision!r}: must be 'bf16', 'fp16' or None.")
        self.state = TrainState(max_steps)
        self.grad_clip = grad_clip
        self.max_non_finite_grad_retries = max_non_finite_grad_retries
        self.precision = Precision(mixed_precision or "fp32")  # type: ignore[arg-type]
        self.gradient_accumulation_steps = gradient_accumulation_steps or 1
        self.workspace = Path(workspace) if workspace is not None else None
        self.device = torch.device(device) if device is not None else torch.get_default_device()
        self.no_sync_accumulate = no_sync_accumulate
        self.state_dict_options = state_dict_options
        self.logger = logger or logging.getLogger("trainer")
        self.max_skipped_steps = max_skipped_steps
        self.max_none_losses = max_none_losses
        self.pause_at = pause_at
        self.step_info: dict[str, Any] = {}
        self.context = RunContext()
        self.restored: dict[str, Any] | None = None
        self.resumed_from: Path | None = None
        self.resumed_rng: dict[str, Any] | None = None
        self.is_built = False
        self.is_training = False
        self._before: tuple[int | None, int | None] = None, None
        self._none_losses = 0
        self._pause_is_due = False
        self._unsettled: DeferredFlag | None = None

    # ------------------------------------------------------------------------------------- what a subclass provides
    def build_data_loader(self) -> Iterable[Any]:
        """Any iterable of batches; a finite one is restarted when it ends."""
        raise NotImplementedError

    def build_model(self) -> nn.Module:
        raise NotImplementedError

    def build_optimizer(self) -> torch.optim.Optimizer:
        raise NotImplementedError

    def forward(self, input: Any) -> tuple[torch.Tensor | None, Records]:
        """The loss (0-d; None: skip this batch) and nested records of numbers or 0-d tensors to log."""
        raise NotImplementedError

    def num_targets(self, input: Any) -> torch.Tensor | int | None:
        """How many targets the loss of a batch is a mean over, where batches differ in it (masked targets).

        Micro-batches and ranks then count by their targets, in training and in validation. None: they count equally.
        """
        return None

    def build_lr_scheduler(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        return None

    def build_grad_scaler(self) -> torch.amp.GradScaler:
        return self.precision.scaler(self.device)

    def build_hooks(self) -> Sequence[BaseHook]:
        return []

    def build_strategy(self) -> Strategy:
        return AdoptedStrategy(
            self.model, self.optimizer, self.grad_scaler, self.step_plan(), self.precision, self.device,
            self.state_dict_options,
        )  # fmt: skip

    def step_plan(self) -> StepPlan:
        return StepPlan(
            grad_accum_steps=self.gradient_accumulation_steps,
            max_grad_norm=self.grad_clip,
            retry_non_finite=self.precision.retries(self.max_non_finite_grad_retries),
            no_sync_accumulate=self.no_sync_accumulate,
        )

    # -------------------------------------------------------------------------------------------------- the loop
    @property
    def max_steps(self) -> int:
        return self.state.max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self.state.max_steps = value

    @property
    def mixed_precision(self) -> torch.dtype | None:
        """What autocast computes in: torch.bfloat16, torch.float16 or None."""
        return self.precision.dtype if self.precision.is_mixed else None

    @property
    def step(self) -> int:
        """The last begun optimizer step."""
        return self.state.step

    @step.setter
    def step(self, value: int) -> None:
        self.state.step = value

    @property
    def is_last_step(self) -> bool:
        """Whether training ends with the present step; a run logs, evaluates and saves it in any case."""
        return self.state.is_at_end()

    @property
    def is_paused(self) -> bool:
        """Whether training ends at the present boundary because of `pause_at`, before its last step."""
        return self._pause_is_due and not self.is_last_step

    @property
    def samples(self) -> int | None:
        """Samples consumed by all ranks, where the loader counts them."""
        return getattr(self.data_loader, "samples", None)

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
        try:
            self.restore()
            self.fire("on_ready")
            self._run(self.resumed_rng or rng)  # what hooks have drawn so far must not show in the first step
            if not self.is_paused:
                self.fire("on_after_train")
        except signals.Stop:
            signals.forget()  # the signal has stopped this run, and must not stop a later one of this process
            raise
        except Exception as error:
            self.fire("on_error", error)
            raise
        finally:
            self.fire("on_close")

    def fire(self, event: str, *args: Any, **options: Any) -> None:
        """Call every hook that does something on an event."""
        for call in self._events[event]:
            call(self, *args, **options)

    def build(self) -> None:
        """Build every part, in this order. `train` calls it unless it was called before."""
        self.data_loader = self.build_data_loader()
        self.model = self.build_model()
        self.optimizer = self.build_optimizer()
        self.lr_scheduler = self.build_lr_scheduler()
        self.grad_scaler = self.build_grad_scaler()
        self.hooks = list(self.build_hooks())
        self.strategy = self.build_strategy()
        self._bind_events()
        self._steps_by_metric = self.lr_scheduler is not None and needs_metric(self.lr_scheduler)
        self._agreement = Agreement()
        self._forward_context: Callable[[], AbstractContextManager[Any]] = self.strategy.forward_context
        self.is_built = True

    def _bind_events(self) -> None:
        self._follow_loader()
        self._events = calls(self.hooks)
        self._after_step = Schedule(self.hooks, "on_after_step")
        self._at_boundary = Schedule(self.hooks, "on_step_boundary")
        counts_epochs = any(self._events[event] for event in ("on_epoch_start", "on_epoch_end"))
        self._epoch = Interval("1epoch", "epoch") if counts_epochs and steps_per_epoch(self) else None
        has_calls = bool(self._events["on_before_optimizer_step"])
        self.strategy.before_clip = (lambda: self.fire("on_before_optimizer_step")) if has_calls else None

    def _follow_loader(self) -> None:
        """`source` is the data loader, or what gives its batches and knows its position."""
        if getattr(self, "_followed", None) is not self.data_loader:
            self._followed, self.source = self.data_loader, resumable(self.data_loader, self.logger)
            self._plain = self.source if isinstance(self.source, PlainLoader) else None
            self._is_interruptible = self._plain is None or self._plain.interruptible

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
        if self.state.epoch:
            set_epoch(self.data_loader, self.state.epoch)
        self._batches = iter(self.source)
        try:
            restore_rng(rng)
            if self._stop_signal() or self._must_pause():
                self._boundary()
            while not (self._pause_is_due or self.state.is_at_end()):
                self._run_step()
                if self.state.is_at_end() and self.update_was_skipped():
                    raise TrainingError(
                        f"Training ended with {self.state.skipped_in_row} skipped updates in a row: the gradient was "
                        f"not finite ({self._last_losses()}). This state is not saved. Lower the learning rate or "
                        "check the data."
                    )
                self._boundary()
        except signals.Interrupted:
            # Nothing of the next step had been computed: the state is that of the boundary before, but for a batch that
            # the loader may have counted just as the signal came.
            self.step -= 1
            samples, consumed = self._before
            if samples is not None:
                self.data_loader.samples = samples  # type: ignore[attr-defined]
            if self._plain is not None and consumed is not None:
                self._plain.consumed = consumed
            self._agreed_at = -1
            self._boundary()
            raise signals.Stop(signals.received()) from None
        finally:
            if hasattr(self._batches, "close"):
                self._batches.close()  # it may own worker processes

    def _run_step(self) -> None:
        state = self.state
        state.step = step = state.step + 1
        self.step_info = {"loss": [], "records": [], "data_time": [], "non_finite_grad_retry_count": 0}
        if self._epoch is not None and (step == 1 or self._epoch.is_due(self, step - 1)):
            self.fire("on_epoch_start")
        self.fire("on_before_step")
        samples = getattr(self.data_loader, "samples", None)
        self._before = samples, None if self._plain is None else self._plain.consumed
        start = time.perf_counter()
        result = self._attempt()
        while result.retry:
            self._count_retry(result)
            result = self._attempt()
        self.step_info["grad_norm"] = result.grad_norm
        if result.skipped is False:
            self._updated()
        elif result.skipped is True:
            self._left_out()
        else:
            self._unsettled = result.skipped
        self.step_info["step_time"] = time.perf_counter() - start
        for call in self._after_step.at(step, everything=state.is_at_end()):
            call(self)
        if self._epoch is not None and self._epoch.is_due(self, step):
            self.fire("on_epoch_end")

    def _attempt(self) -> StepResult:
        if self.strategy.needs_closure:
            self._accumulate_for_closure()
        else:
            self._accumulate(self._micro_batches())
        self.settle()
        self.step_info["lr"] = [  # the scheduler changes a tensor in place
            rate.clone() if isinstance(rate := group["lr"], torch.Tensor) else rate
            for group in self.optimizer.param_groups
        ]
        self._agreement.begin(signals.received())
        return self.strategy.step()

    def _accumulate_for_closure(self) -> None:
        """As `_accumulate`. The strategy can repeat it over the same batches, with the same random numbers."""
        start, kept = rng_state(), list(itertools.islice(self._micro_batches(), self.gradient_accumulation_steps))

        def mean_loss() -> torch.Tensor:
            loss = torch.stack(self.step_info["loss"]).mean()
            return ranks.sum_over_ranks(loss) / world_size()

        def evaluate_again() -> torch.Tensor:
            first = {key: self.step_info[key] for key in ("loss", "records")}
            self.step_info |= {"loss": [], "records": []}
            restore_rng(start)
            self.strategy.zero_grad()
            self._accumulate(iter(kept))
            loss = mean_loss()
            self.step_info |= first
            return loss

        self._accumulate(iter(kept))
        self.strategy.closure = mean_loss(), evaluate_again

    def _accumulate(self, micro_batches: Iterator[tuple[Any, torch.Tensor | None]]) -> None:
        """Forward and backward over the micro-batches of one optimizer step."""
        strategy, info, count = self.strategy, self.step_info, self.gradient_accumulation_steps
        done = 0
        while done < count:
            if signals.received():
                deadline.progress()
            batch, weight = next(micro_batches)
            for call in self._events["on_batch"]:
                call(self, batch)
            with strategy.grad_sync(done == count - 1):
                with self._forward_context():
                    loss, records = self.forward(batch)
                if loss is None:
                    self._count_none_loss()
                    continue
                if weight is not None:
                    loss, records = weigh(loss, weight), weigh(records, weight)
                info["loss"].append(loss.detach())
                info["records"].append(records)
                strategy.backward(loss)
            self._none_losses = 0
            done += 1

    def _micro_batches(self) -> Iterator[tuple[Any, torch.Tensor | None]]:
        """Batches, with their factors where they count by targets: all of a step are then fetched before the first
        forward pass, since a factor depends on all of them."""
        count = self.gradient_accumulation_steps
        interruptible = not self.step_info["data_time"]  # before anything has been drawn or computed
        first = self._next_batch(interruptible)
        is_shared = count > 1 or not self._agreement.alone
        if is_shared and (targets := self.num_targets(first)) is not None:
            batches = [first, *(self._next_batch(interruptible) for _ in range(count - 1))]
            counts = [targets, *(self.num_targets(batch) or 0 for batch in batches[1:])]
            yield from zip(batches, target_weights(counts, self.device), strict=True)
        else:
            yield first, None
        while True:
            yield self._next_batch(False), None

    def _next_batch(self, interruptible: bool) -> Any:
        start = time.perf_counter()
        try:
            if interruptible and self._agreement.alone and self._is_interruptible:
                with signals.waiting:
                    batch = next(self._batches)
            else:
                batch = next(self._batches)
        except StopIteration:
            batch = self._next_epoch()
        self.step_info["data_time"].append(time.perf_counter() - start)
        return batch

    def _next_epoch(self) -> Any:
        self.state.epoch += 1
        set_epoch(self.data_loader, self.state.epoch)
        self._batches = iter(self.source)
        try:
            return next(self._batches)
        except StopIteration:
            raise TrainingError("The data loader has no batch: its dataset is empty.") from None

    def _boundary(self) -> None:
        """The state is that of a completed step: the moment to save it, and to leave if a signal asks for that."""
        state, self._pause_is_due = self.state, self._must_pause()
        everything = bool(self._stop_signal()) or self._pause_is_due or state.is_at_end() or state.needs_boundary
        state.needs_boundary = False
        for call in self._at_boundary.at(state.step, everything):
            call(self)
        if signum := self._stop_signal():
            raise signals.Stop(signum)

    def _must_pause(self) -> bool:
        return self.pause_at is not None and self.state.step >= self.pause_at and not self.update_was_skipped()

    def _stop_signal(self) -> int:
        """The signal that all ranks know of at this boundary."""
        step = self.state.step
        if self._agreed_at != step:
            self._agreed, self._agreed_at = self._agreement.result(signals.received()), step
        is_complete = self._agreed and self.state.is_at_end() and self._repeats != step
        return 0 if is_complete else self._agreed  # a run that has ended is completed, not stopped

    def stop_at_this_boundary(self) -> None:
        """All ranks call it once they have interrupted something because of a signal: it is repeated after the resume,
        so no further step may be made."""
        self._stop_signal()
        self._agreed, self._repeats = maximum(signals.received()), self.step

    _agreed = 0
    _agreed_at = -1
    _repeats = -1
    """The step at which something was interrupted; it is not complete, even if it is the last one."""

    @property
    def stop_signal(self) -> int:
        """For hooks at a boundary: the signal on which training ends here, 0 without one. The same on all ranks."""
        return self._stop_signal()

    # ---------------------------------------------------------------------------------- skipped updates
    def settle(self) -> None:
        """Read whether the device skipped the last update, and step the scheduler if it did not. Called before each
        update; it waits for the previous step only."""
        if self._unsettled is not None:
            flag, self._unsettled = self._unsettled, None
            self._left_out() if flag.read() else self._updated()

    def update_was_skipped(self) -> bool:
        """Whether the last update was skipped, other than by a loss scaler in search of its scale. The state may be
        broken then, and is not to be saved. The same on all ranks, which must all call it; it waits for the device."""
        self.settle()
        scales = self.precision.needs_scaler or self.grad_scaler.is_enabled()
        if not self.state.skipped_in_row or not scales:
            return bool(self.state.skipped_in_row)
        is_finite = all(bool(loss.isfinite()) for loss in self.step_info.get("loss", ()))
        return bool(maximum(not is_finite))

    def _updated(self) -> None:
        self.state.skipped_in_row = 0
        if self.lr_scheduler is not None and not self._steps_by_metric:
            self.lr_scheduler.step()

    def _left_out(self) -> None:
        state = self.state
        state.skipped_steps += 1
        state.skipped_in_row += 1
        if state.skipped_in_row & (state.skipped_in_row - 1) == 0:  # the 1st, 2nd, 4th, 8th ... in a row
            self.logger.log(
                logging.INFO if self.grad_scaler.is_enabled() else logging.WARNING,  # how a scaler finds its scale
                "Step %d: the gradient is not finite (%s); the update is skipped (%d in a row).",
                self.step, self._last_losses(), state.skipped_in_row,
            )  # fmt: skip
        if state.skipped_in_row > self.max_skipped_steps:
            raise TrainingError(
                f"The gradient was not finite in {state.skipped_in_row} steps in a row (max_skipped_steps="
                f"{self.max_skipped_steps}); last: {self._last_losses()}. Lower the learning rate or check the data."
            )

    def _count_retry(self, result: StepResult) -> None:
        count = self.step_info["non_finite_grad_retry_count"]
        bound = self.max_non_finite_grad_retries or 0
        if count >= bound:
            raise TrainingError(
                f"Step {self.step}: the gradient is not finite after {count} of {bound} retries "
                f"(max_non_finite_grad_retries); last: {self._last_losses()}."
            )
        self.logger.warning(
            "Step %d: the gradient is not finite (%s); retry %d/%d with new batches.",
            self.step, self._last_losses(), count + 1, bound,
        )  # fmt: skip
        self.step_info |= {"loss": [], "records": [], "non_finite_grad_retry_count": count + 1}

    def _count_none_loss(self) -> None:
        self._none_losses += 1
        if world_size() > 1 and self.strategy.forward_is_collective:
            raise TrainingError(
                f"Step {self.step}: forward returned no loss on rank {self.strategy.ranks.rank}. Under "
                f"strategy={self.strategy.name} the ranks' forward and backward passes wait for each other, so each "
                "needs a loss for every batch: return a loss multiplied by 0, or use strategy=ddp."
            )
        if needs_backward(self.model):
            warnings.warn(
                "The loss is None: no backward pass follows. Do not call the wrapped model's forward for such a batch; "
                "DDP and FSDP expect each forward to be followed by a backward.",
                LossNoneWarning,
                stacklevel=2,
            )
        if self._none_losses > self.max_none_losses:
            raise TrainingError(
                f"Step {self.step}: forward returned no loss {self._none_losses} times in a row "
                f"(max_none_losses={self.max_none_losses})."
            )

    def _last_losses(self) -> str:
        losses = ", ".join(f"{float(loss):.6g}" for loss in self.step_info["loss"])
        records = "; ".join(filter(None, map(format_records, self.step_info["records"])))
        return f"loss {losses}" + (f"; {records}" if records else "")

    # ----------------------------------------------------------------------------------------- state and logging
    def state_dict(self) -> dict[str, Any]:
        """`model`, `training_state`, and what hooks add, in memory. Tensors are complete under every wrapper."""
        from torch.distributed.checkpoint.state_dict import get_state_dict  # 1 s of imports, for this call alone

        model, optimizer = get_state_dict(self.model, self.optimizer, options=self.state_dict_options)
        training_state = self.training_state()
        hooks = hook_states(self, training_state)
        tensors = {name: companion.whole() for name, companion in hook_tensors(self).items()}
        own = {key: value for state in reversed(hooks.values()) for key, value in state.items()}  # the first one counts
        state = {"model": model, "training_state": training_state | {"optimizer": optimizer}}
        return {**own, **state, "hooks": hooks, "hook_tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        training_state = state["training_state"]
        self.load_training_state(training_state)  # the scheduler before the optimizer: pytorch #119168
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=training_state["optimizer"],
            options=self.state_dict_options,
        )
        for hook in self.hooks:
            hook.load_tensors(self, InMemory(state.get("hook_tensors", {})))
        hooks = state.get("hooks")
        load_hook_states(self, hooks or {}, state, is_complete=hooks is not None)

    def training_state(self) -> dict[str, Any]:
        """Counters, scheduler, scaler and data position: all but model, optimizer and hooks."""
        self.settle()
        state = self.state
        return {
            "step": state.step,
            "skipped_steps": state.skipped_steps,
            "skipped_in_row": state.skipped_in_row,
            "epoch": state.epoch,
            "stop_reason": state.stop_reason,
            "lr_scheduler": self.lr_scheduler.state_dict() if self.lr_scheduler is not None else None,
            "grad_scaler": self.grad_scaler.state_dict(),
            "data_loader": self.source.state_dict() if hasattr(self.source, "state_dict") else None,
        }

    def load_training_state(self, saved: dict[str, Any]) -> None:
        state = self.state
        state.step = saved["step"]
        state.skipped_steps = saved.get("skipped_steps", 0)
        state.skipped_in_row = saved.get("skipped_in_row", 0)
        state.epoch = saved.get("epoch", 0)
        state.stop_reason = saved.get("stop_reason")
        if self.lr_scheduler is not None and saved["lr_scheduler"] is not None:
            self.lr_scheduler.load_state_dict(saved["lr_scheduler"])
        if self.grad_scaler.is_enabled() and saved["grad_scaler"]:
            self.grad_scaler.load_state_dict(saved["grad_scaler"])
        position = saved.get("data_loader")
        if position is not None and hasattr(self.source, "load_state_dict"):
            self.source.load_state_dict(position)
        elif state.step:
            reason = "the checkpoint has no position" if position is None else ""
            if not hasattr(self.source, "load_state_dict"):
                reason = why_not_exact(self.data_loader)
            self.logger.warning("After this resume the data loader's order starts from the beginning: %s.", reason)

    @classmethod
    def unwrap(cls, module: nn.Module) -> nn.Module:
        return unwrap(module)

    @property
    def unwrapped_model(self) -> nn.Module:
        return unwrap(self.model)

    def log(self, records: dict[str, Any], dry_run: bool = False) -> None:
        """Pass nested records of numbers to every hook; `dry_run`: hooks only report what they would do."""
        if not dry_run:
            self.state.metrics.update(flatten(records))
        self.fire("on_log", records, dry_run=dry_run)

    def log_scalars(self, records: dict[str, Any], dry_run: bool = False) -> None:
        """The name of `log` in trainloop 0.11."""
        self.log(records, dry_run=dry_run)

    def log_images(self, records: dict[str, Any], dry_run: bool = False) -> None:
        """Pass nested records of images to every hook: of PIL, arrays [H, W, C] or tensors [C, H, W]."""
        self.fire("on_log_images", records, dry_run=dry_run)

    def log_histograms(self, records: dict[str, Any], dry_run: bool = False) -> None:
        """Pass nested records of tensors or arrays to every hook. All ranks call it."""
        self.fire("on_log_histograms", records, dry_run=dry_run)
