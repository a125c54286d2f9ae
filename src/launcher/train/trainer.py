"""Train: a subclass's methods, the step, the boundary between steps, and a trainer's state.

    train -> build -> restore -> [before_step -> accumulate -> strategy.step -> after_step ->
        (last_step) -> boundary] -> after_train

The loop itself never reads a value from the device. Losses, norms and records stay there until a
hook reads them.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from launcher.config.messages import describe_type
from launcher.config.schema.value_types import check_bounds
from launcher.errors import ConfigError, NonFiniteError, TrainingError
from launcher.hooks.base import BaseHook, overrides
from launcher.hooks.evaluation_weights import EvaluationWeightsHook, switches_weights
from launcher.hooks.interval import Interval, steps_per_epoch
from launcher.hooks.records import format_step
from launcher.hooks.state import full_state, load_full_state, load_hook_states
from launcher.hooks.view import LossAndRecords, RunContext, State, StepInfo, TrainState
from launcher.models.modes import own_modes
from launcher.models.output import check_output, check_parameters, is_part
from launcher.models.own_memory import give_own_memory
from launcher.optim.optimizers import check_optimizer
from launcher.optim.precision import Precision
from launcher.optim.schedule_state import ScheduleState
from launcher.optim.schedulers import (
    check_scheduler,
    current_rates,
    follow_groups,
    needs_metric,
)
from launcher.process import deadline, signals
from launcher.process.device import parse_device
from launcher.process.object_walk import attributes
from launcher.process.ranks import Agreement, maximum
from launcher.process.rng import RngState, restore_rng, rng_state
from launcher.strategies.base import Strategy
from launcher.strategies.external import ExternalStrategy
from launcher.strategies.forward_changes import reject_changes
from launcher.strategies.lane_sums import Unchanged
from launcher.strategies.missing_loss import check_missing_loss
from launcher.strategies.step import DeferredFlag, StepPlan, StepResult
from launcher.strategies.weights import model_tensors, unwrap
from launcher.train.attempt_modes import AttemptModes
from launcher.train.batches import Batches, MicroBatches, weigh
from launcher.train.events import HookCaller, calls, check_hook
from launcher.types import NonNegativeFloat, NonNegativeInt, PositiveInt

LATER_NAMES = {"model", "optimizer", "grad_scaler", "strategy", "_framework_names"}
LATER_NAMES |= {"_batches", "_schedule", "_agreement", "_events", "_num_groups"}
"""Attributes of a trainer that `build` adds."""
ADVICE = "Lower the learning rate or check the data."


class BaseTrainer(HookCaller):
    """Training by subclass, which has the `build_*` methods and `forward`.

    Args:
        max_steps: optimizer steps to train for.
        grad_clip: clip gradients to this 2-norm.
        max_non_finite_grad_retries: repeat a step whose gradient is not finite at most this often,
            with new batches, then raise. With None, skip the update and count it. More than
            `max_consecutive_skipped_steps` in a row raise.
        mixed_precision: "bf16", "fp16" or None.
        gradient_accumulation_steps: micro-batches per optimizer step. None is 1.
        workspace: the folder for the hooks' files.
        device: the device. None is torch's default device.
        no_sync_accumulate: ranks of a DDP model exchange gradients with the last micro-batch only.
        state_dict_options: options of `state_dict()`. Checkpoints follow its `ignore_frozen_params`
            and `strict`.
        logger: the logger. None is the logger "trainer".
        max_consecutive_skipped_steps: at most this many skipped updates in a row.
        max_consecutive_none_losses: at most this many losses of None in a row.
        pause_at: `train` saves and returns at this step, or at the next one whose update is not
            skipped.
    Raises:
        ValueError: an argument has another value, or is out of bounds.

    Examples:
        >>> class Line(BaseTrainer):
        ...     def build_data_loader(self):
        ...         return [(torch.ones(4, 1), torch.ones(4, 1))]
        ...
        ...     def build_model(self):
        ...         return torch.nn.Linear(1, 1)
        ...
        ...     def build_optimizer(self):
        ...         return torch.optim.SGD(self.model.parameters(), lr=0.1)
        ...
        ...     def forward(self, batch):
        ...         input, target = batch
        ...         return torch.nn.functional.mse_loss(self.model(input), target), {}
        >>> trainer = Line(max_steps=3, device="cpu")
        >>> trainer.train()
        >>> trainer.step
        3
    """

    def __init__(
        self,
        max_steps: PositiveInt,
        grad_clip: NonNegativeFloat | None = None,
        max_non_finite_grad_retries: NonNegativeInt | None = None,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: PositiveInt | None = None,
        workspace: Path | str | None = None,
        device: torch.device | str | int | None = None,
        no_sync_accumulate: bool = True,
        state_dict_options: object = None,
        logger: logging.Logger | None = None,
        *,
        max_consecutive_skipped_steps: NonNegativeInt = 50,
        max_consecutive_none_losses: NonNegativeInt = 100,
        pause_at: NonNegativeInt | None = None,
    ):
        check_bounds(type(self).__name__, BaseTrainer.__init__, (), locals())
        before = set(vars(self))
        if mixed_precision not in (None, "bf16", "fp16"):
            raise ValueError(
                f"mixed_precision={mixed_precision!r}: must be 'bf16', 'fp16' or None."
            )
        # `super()` would be one of the names above.
        HookCaller.__init__(self, TrainState(max_steps), logger or logging.getLogger("trainer"))
        self.grad_clip, self.max_non_finite_grad_retries = grad_clip, max_non_finite_grad_retries
        self.gradient_accumulation_steps, self.no_sync_accumulate = (
            gradient_accumulation_steps or 1,
            no_sync_accumulate,
        )
        self.max_consecutive_skipped_steps = max_consecutive_skipped_steps
        self.max_consecutive_none_losses = max_consecutive_none_losses
        self.pause_at, self.state_dict_options = pause_at, state_dict_options
        self.precision = Precision(mixed_precision or "fp32")  # type: ignore[arg-type]
        self.workspace = Path(workspace) if workspace is not None else None
        self.device = parse_device(device)
        self.context = RunContext()
        # `build` makes the parts.
        self.is_built = False
        self._follows_metric = False
        self.data_loader: object = None
        self.model: nn.Module
        self.optimizer: torch.optim.Optimizer
        self.lr_scheduler: LRScheduler | None = None
        self.grad_scaler: torch.amp.GradScaler
        self.strategy: Strategy
        self._batches: Batches
        self._schedule: ScheduleState
        self._agreement: Agreement
        self._epoch: Interval | None = None
        # The hook that restores a checkpoint sets these.
        self.restored: State | None = None
        self.resumed_from: Path | None = None
        self.is_fork = False
        self.step_has_changed = False
        # The current step and its boundary.
        self.step_info: StepInfo = {}
        self._has_checked_forward = False
        self.is_paused = False
        self.stop_signal, self._agreed_at = 0, -1
        self._unsettled: DeferredFlag | None = None
        self._last_loss: torch.Tensor | None = None
        self._is_compiled = False
        self._framework_names = frozenset(vars(self)) - before
        self._modes = AttemptModes(self.logger)

    # --------------------------------------------------------------------- what a subclass provides
    def build_data_loader(self) -> Iterable[Any]:
        """Build any iterable of batches. A finite one is restarted when it ends."""
        raise self._missing("build_data_loader(self)", "returns an iterable of batches")

    def build_model(self) -> nn.Module:
        """Build the model on `self.device`; for several ranks it is wrapped here, e.g. by DDP."""
        raise self._missing("build_model(self)", "returns a torch.nn.Module")

    def build_optimizer(self) -> torch.optim.Optimizer:
        """Build the optimizer of `self.model`."""
        raise self._missing("build_optimizer(self)", "returns a torch.optim.Optimizer")

    def forward(self, input: Any) -> LossAndRecords:
        """Return the loss of a batch (0-d), and nested records of numbers or 0-d tensors to log.

        With a loss of None, the batch is skipped.
        """
        raise self._missing("forward(self, batch)", "returns the loss and a dict of records")

    def num_targets(self, input: Any) -> torch.Tensor | int | None:
        """Return the number of targets that a batch's loss is a mean over, if batches differ in it.

        Micro-batches and ranks then count by their targets, in training and in validation. With
        None, they count equally.
        """
        return None

    def _counts_targets(self) -> bool:
        return type(self).num_targets is not BaseTrainer.num_targets

    def build_lr_scheduler(self) -> LRScheduler | None:
        """Build the schedule of `self.optimizer`, which is stepped once per optimizer step.

        Default None: constant rates. `self.max_steps` is the length of the run.
        """
        return None

    def build_grad_scaler(self) -> torch.amp.GradScaler:
        """Build the scaler of the loss. Default: enabled with mixed_precision="fp16" only."""
        return self.precision.scaler(self.device)

    def build_hooks(self) -> Sequence[BaseHook]:
        """Build the hooks, in the order in which each event calls them. Default: none."""
        return []

    def build_strategy(self) -> Strategy:
        """Build the strategy that makes the steps of the model and the optimizer.

        Default: it steps them as they are, so `build_model` may have wrapped the model itself.
        """
        plan = StepPlan(
            grad_accum_steps=self.gradient_accumulation_steps,
            max_grad_norm=self.grad_clip,
            retry_non_finite=self.precision.retries(self.max_non_finite_grad_retries),
            sync_every_micro_batch=not self.no_sync_accumulate,
        )
        return ExternalStrategy(
            self.model,
            self.optimizer,
            self.grad_scaler,
            plan,
            self.precision,
            self.device,
            self.state_dict_options,
        )

    def _missing(self, method: str, purpose: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no {method.split('(')[0]}; add {method}, which {purpose}."
        )

    # ----------------------------------------------------------------------------- putting together
    def build(self) -> None:
        """Build every part, in this order. `train` calls it unless it was called before."""
        self.data_loader = self._part(
            "build_data_loader", "an iterable of batches", "__iter__", "__getitem__"
        )
        self.build_model_and_optimizer()
        self.lr_scheduler = self._part(
            "build_lr_scheduler", "a scheduler of torch.optim, or None", "step"
        )
        if self.lr_scheduler is not None:
            check_scheduler(self.lr_scheduler, f"{type(self).__name__}.build_lr_scheduler")
            self._follows_metric = needs_metric(self.lr_scheduler)
        self.grad_scaler = self._part("build_grad_scaler", "a torch.amp.GradScaler", "unscale_")
        self.hooks = list(self._part("build_hooks", "a list of hooks", "__iter__"))
        for hook in self.hooks:
            check_hook(hook, f"{type(self).__name__}.build_hooks")
        if switches_weights(self.optimizer):
            # A hook of the user's may call the same methods.
            self.hooks.insert(0, EvaluationWeightsHook(self.optimizer))
        self.strategy = self.build_strategy()
        self._num_groups = len(self.optimizer.param_groups)
        self._agreement = Agreement()
        self.bind_events()
        self.is_built = True

    def build_model_and_optimizer(self) -> None:
        self.model = self._part("build_model", "a torch.nn.Module", "named_parameters")
        check_parameters(self.model)
        give_own_memory(self.model)
        self.optimizer = self.build_optimizer()
        check_optimizer(self.optimizer, f"{type(self).__name__}.build_optimizer")

    def _part(self, method: str, expected: str, *attributes: str) -> Any:
        part = getattr(self, method)()
        if not is_part(part, attributes) and not (part is None and expected.endswith("or None")):
            raise ConfigError(
                f"{type(self).__name__}.{method} should return {expected}; it returned"
                f" {describe_type(part)}."
            )
        return part

    def bind_events(self) -> None:
        """List what each event calls. Needed again after a change of hooks or loader."""
        # A hook may replace the loader and the schedule.
        if not self.is_built or self._batches.loader is not self.data_loader:
            self._batches = Batches(
                self.data_loader,
                self.logger,
                self.num_targets if self._counts_targets() else None,
                self.device,
                self._agreement.alone,
            )
        if not self.is_built or self._schedule.scheduler is not self.lr_scheduler:
            self._schedule = ScheduleState(self.optimizer, self.lr_scheduler)
        self._events = calls(self.hooks)
        length = steps_per_epoch(self)
        self.state.num_epochs = float(self.max_steps / length) if length else None
        has_epoch_calls = self._events["on_epoch_start"] or self._events["on_epoch_end"]
        self._epoch = Interval("1epoch", "epoch") if length and has_epoch_calls else None
        has_calls = any(
            overrides(hook, "on_before_optimizer_step")
            and (self.strategy.needs_graph or hook.needs_gradients)
            for hook in self.hooks
        )
        self.strategy.before_clip = (
            (lambda: self.fire("on_before_optimizer_step")) if has_calls else None
        )

    # ------------------------------------------------------------------------------------- training
    def train(self) -> None:
        """Train until `max_steps`, `pause_at`, a hook's `state.stop`, or a signal.

        Raises:
            signals.SignalExit: a signal came, and the hooks have saved. It is a SystemExit with
                code 128 + signal.
            TrainingError: a bound on non-finite gradients or losses of None was exceeded, or the
                last was skipped.
        """
        if not self.is_built:
            self.build()
        rng = rng_state()
        self.is_paused = False
        self.stop_signal = 0
        self._agreed_at = -1
        has_ended = False
        self.step_has_changed = False
        try:
            self._modes.start(self.model)
            self.restore()
            if self.restored is None:
                self._modes.report()
            self.fire("on_ready")
            # Random numbers that hooks have drawn must not affect the first step.
            self._run(self.restored["rng"] if self.restored else rng)
            if not self.is_paused:
                self.fire("on_after_train")
            has_ended = True
        except signals.SignalExit:
            # The signal has stopped this run, and must not stop a later one in this process.
            signals.forget()
            raise
        except Exception as error:
            self.fire("on_error", error)
            raise
        finally:
            self._modes.end(self.model)
            self.close_hooks(has_ended)

    def restore(self) -> None:
        """Set up the hooks and restore the state that an earlier attempt saved.

        The state of hooks comes last, since a hook may create its model in `on_before_train`, as a
        copy of the restored one, and fill it in `on_load_state_dict`.
        """
        self.restored = None
        for event in ("on_start", "on_restore", "on_before_train"):
            # A hook may have added another, or set a function on one.
            self.bind_events()
            self.fire(event)
        self.bind_events()
        if self.restored is not None:
            shared = {
                "model": model_tensors(self.model),
                "training_state": self.restored["training_state"],
            }
            load_hook_states(self, self.restored["hooks"], shared)

    def _run(self, rng: RngState) -> None:
        self._has_checked_forward = False
        self.strategy.zero_grad()
        at_start = self._events["on_epoch_start"] + self._events["on_before_step"]
        # Hooks that are not Launcher's may draw random numbers there, or count.
        is_repeatable = all(call.__module__.startswith("launcher.") for call in at_start)
        self._batches.start(self.state, is_repeatable)
        try:
            restore_rng(rng)
            self._agree_on_signal()
            has_boundary = bool(self.stop_signal) or self.step_has_changed
            if has_boundary or self.must_pause() or self.state.is_at_end():
                self._boundary()
            while not (self.is_paused or self.state.is_at_end()):
                self._run_step()
                if self.state.is_at_end():
                    self.fire("on_last_step")
                    self._check_last_update()
                self._boundary()
        except signals.Interrupted:
            # Nothing of the next step had been computed, so the state still belongs to the previous
            # boundary.
            self.state.step -= 1
            self._batches.rewind()
            self._agreed_at = -1
            self._boundary()
            raise signals.SignalExit(signals.first_signal()) from None
        finally:
            self._batches.close()
            self._last_loss = None

    # --------------------------------------------------------------------------------------- a step
    def _run_step(self) -> None:
        self.state.step += 1
        step = self.state.step
        self._batches.mark()
        if self._agreement.alone and signals.first_signal():
            raise signals.Interrupted
        self.step_info = {
            "loss": [],
            "records": [],
            "data_time": [],
            "step_time": 0.0,
            "grad_norm": None,
            "lr": [],
            "non_finite_grad_retry_count": 0,
        }
        if self._epoch is not None and (step == 1 or self._epoch.is_due(self, step - 1)):
            self.state.epoch = self._batches.next_epoch()
            self.fire("on_epoch_start")
        for call in self._events["on_before_step"]:
            call(self)
        start = time.perf_counter()
        result = self._attempt()
        while result.retry:
            self._count_retry()
            result = self._attempt()
        self.step_info["grad_norm"] = result.grad_norm
        if isinstance(result.skipped, DeferredFlag):
            self._unsettled = result.skipped
        else:
            self._after_update(result.skipped)
        self.step_info["step_time"] = time.perf_counter() - start
        for call in self._events["on_after_step"]:
            call(self)
        if self._epoch is not None and self._epoch.is_due(self, step):
            self.fire("on_epoch_end")

    def _attempt(self) -> StepResult:
        """Compute a step's gradients, let the strategy clip them, update the weights, zero them."""
        data_time = self.step_info["data_time"]
        self._accumulate(self._batches.of_step(self.gradient_accumulation_steps, data_time))
        if self._batches.targets is not None:
            self.step_info["num_targets"] = self._batches.targets
        if (lanes := self.strategy.lanes) is not None:
            self.step_info["loss"] = lanes.end_of_step(self.state.step, self.step_info["loss"])
        self.settle()
        if len(self.optimizer.param_groups) != self._num_groups:
            follow_groups(self.lr_scheduler)
            self._num_groups = len(self.optimizer.param_groups)
        self.step_info["lr"] = current_rates(self.optimizer)
        self._agreement.begin(signals.first_signal())
        return self.strategy.step()

    def _accumulate(self, micro_batches: MicroBatches) -> None:
        """Run forward and backward until each micro-batch of the step has had a loss."""
        count = self.gradient_accumulation_steps
        done = 0
        none_losses = 0
        lanes = self.strategy.lanes
        unchanged = (
            None if lanes is None or self._has_checked_forward else Unchanged(self.unwrapped_model)
        )
        while done < count:
            if signals.first_signal():
                deadline.progress()
            batch, weight = next(micro_batches)
            for call in self._events["on_batch"]:
                call(self, batch)
            if lanes is not None:
                lanes.set_random_state(self.state.step, lanes.local[done])
            with self.strategy.grad_sync(done == count - 1):
                has_loss = self._forward_backward(batch, weight)
            done, none_losses = (done + 1, 0) if has_loss else (done, none_losses + 1)
            if not has_loss:
                check_missing_loss(self.strategy, self.state.step)
                # A model that steps its own optimizers has skipped its step.
                self.step_info["non_finite_grad_retry_count"] += not self.strategy.needs_graph
            if none_losses > self.max_consecutive_none_losses:
                raise TrainingError(
                    f"Step {self.state.step}: forward returned no loss {none_losses} times in a row"
                    f" (max_consecutive_none_losses={self.max_consecutive_none_losses})."
                )
        if unchanged is not None:
            unchanged.check()

    def _forward_backward(self, batch: object, weight: torch.Tensor | None) -> bool:
        """Run forward and backward for one micro-batch; return whether it had a loss."""
        with self.strategy.forward_context():
            if self._has_checked_forward:
                loss, records = self.forward(batch)
            else:
                with reject_changes(self.strategy, self._is_compiled):
                    loss, records = self.call_forward(batch)
        self._has_checked_forward = True
        if loss is None:
            return False
        if weight is not None:
            loss, records = weigh(loss, weight), weigh(records, weight)
        self.step_info["loss"].append(loss.detach())
        self.step_info["records"].append(records)
        self.strategy.backward(loss)
        # Autograd's node that accumulates a parameter's gradient lives as long as a graph that uses
        # it. If this graph lives until the next one exists, the node is not built again.
        self._last_loss = loss
        return True

    def call_forward(self, input: object) -> LossAndRecords:
        """Call `forward`, and check its output."""
        output = self.forward(input)
        check_output(output, self._forward_name(), self.strategy.needs_graph)
        return output

    def _forward_name(self) -> str:
        return f"{type(self).__name__}.forward"

    # ----------------------------------------------------------- skipped updates and missing losses
    def _after_update(self, was_skipped: bool) -> None:
        """Step the scheduler, or count a non-finite gradient and raise after too many in a row."""
        state = self.state
        if not was_skipped:
            state.skipped_in_row = 0
            if self.lr_scheduler is not None and not self._follows_metric:
                self.lr_scheduler.step()
            return
        state.skipped_steps += 1
        state.skipped_in_row += 1
        count = state.skipped_in_row
        # The 1st, 2nd, 4th, 8th ... skipped update in a row is logged.
        if count.bit_count() == 1:
            # A loss scaler finds its scale by skipping updates, so this is no reason to warn.
            level = logging.INFO if self.grad_scaler.is_enabled() else logging.WARNING
            text = "Step %d: the gradient is not finite (%s); the update is skipped (%d in a row)."
            self.logger.log(level, text, state.step, format_step(self.step_info), count)
        if count > self.max_consecutive_skipped_steps:
            raise NonFiniteError(
                f"The gradient was not finite in {count} steps in a row"
                f" (max_consecutive_skipped_steps={self.max_consecutive_skipped_steps}); last:"
                f" {format_step(self.step_info)}. {ADVICE}"
            )

    def settle(self) -> None:
        """Read whether the device skipped the last update; this waits for that step only."""
        if (flag := self._unsettled) is not None:
            self._unsettled = None
            self._after_update(flag.read())

    def update_was_skipped(self) -> bool:
        """Return whether the last update was skipped, other than by a loss scaler's search.

        The state may then be broken, and must not be saved. The result is the same on all ranks,
        which must all call it. It waits for the device.
        """
        self.settle()
        scales = self.precision.needs_scaler or self.grad_scaler.is_enabled()
        if not self.state.skipped_in_row or not scales:
            return bool(self.state.skipped_in_row)
        is_finite = all(bool(loss.isfinite()) for loss in self.step_info.get("loss", ()))
        return bool(maximum(not is_finite))

    def _check_last_update(self) -> None:
        if self.update_was_skipped():
            raise NonFiniteError(
                f"Training ended with {self.state.skipped_in_row} skipped updates in a row: the"
                f" gradient was not finite ({format_step(self.step_info)}). This state is not"
                f" saved. {ADVICE}"
            )

    def _count_retry(self) -> None:
        """Count an attempt with a non-finite gradient. The next one uses new batches."""
        info = self.step_info
        step = self.state.step
        bound = self.max_non_finite_grad_retries or 0
        count = info["non_finite_grad_retry_count"]
        if count >= bound:
            raise NonFiniteError(
                f"Step {step}: the gradient is not finite after {count} of {bound} retries "
                f"(max_non_finite_grad_retries); last: {format_step(info)}."
            )
        text = "Step %d: the gradient is not finite (%s); retry %d/%d with new batches."
        self.logger.warning(text, step, format_step(info), count + 1, bound)
        info["loss"] = []
        info["records"] = []
        info["non_finite_grad_retry_count"] = count + 1

    # -------------------------------------------------------------------------------- between steps
    def _boundary(self) -> None:
        """Run the between-step hooks (checkpointing), then leave if a signal was received."""
        self._agree_on_signal()
        self.is_paused = self.must_pause() and not self.is_last_step
        for call in self._events["on_step_boundary"]:
            call(self)
        if self.stop_signal:
            raise signals.SignalExit(self.stop_signal)

    def _agree_on_signal(self) -> None:
        """Agree with all ranks on a signal, once per boundary, unless the run has ended."""
        if self._agreed_at != self.state.step:
            self._agreed_at = self.state.step
            signum = self._agreement.result(signals.first_signal())
            self.stop_signal = signum if signum and not self.is_last_step else 0

    def stop_at_this_boundary(self) -> None:
        """End training here: a signal has interrupted something that the resumed run repeats.

        All ranks call it.
        """
        # The exchange that the step has begun ends first.
        self._agree_on_signal()
        self.stop_signal = maximum(signals.first_signal())

    def must_pause(self) -> bool:
        return (
            self.pause_at is not None
            and self.state.step >= self.pause_at
            and not self.update_was_skipped()
        )

    # ------------------------------------------------------------------------------------ its state
    def state_dict(self) -> State:
        """Return `model`, `training_state`, and the additions of hooks, with full tensors."""
        return full_state(self, self.state_dict_options)

    def load_state_dict(self, state: State) -> None:
        load_full_state(self, state, self.state_dict_options)

    def training_state(self) -> State:
        """Return counters, scheduler, scaler and data position."""
        self.settle()
        return self.state.counters() | {
            "lr_scheduler": (
                self.lr_scheduler.state_dict() if self.lr_scheduler is not None else None
            ),
            "lr_arguments": self._schedule.arguments,
            "grad_scaler": self.grad_scaler.state_dict(),
            "data_loader": self._batches.position(),
            "modes": own_modes(self.unwrapped_model),
        }

    def load_training_state(self, saved: State) -> None:
        self.state.load_counters(saved)
        if saved["grad_scaler"]:
            self.grad_scaler.load_state_dict(saved["grad_scaler"])
        self._batches.load_position(saved["data_loader"], self.state)
        self._modes.restore(self.unwrapped_model, saved.get("modes", {}))

    def restore_schedule(self, saved: State, takes_rates: bool = False) -> None:
        """Restore the schedule of a training state, after the optimizer.

        A fork, or `takes_rates`, takes the current learning rate in place of the saved one.
        """
        updates = self.state.step - self.state.skipped_steps
        self._schedule.restore(saved, updates, takes_rates=self.is_fork or takes_rates)

    def own_attributes(self) -> dict[str, Any]:
        """Return the attributes that a subclass has added."""
        if type(self).__module__.startswith("launcher."):
            return {}
        names = self._framework_names | LATER_NAMES
        return {name: value for name, value in attributes(self).items() if name not in names}

    @property
    def source(self) -> object:
        return self._batches.source

    @property
    def samples(self) -> int | None:
        """Samples consumed by all ranks, if the loader counts them."""
        return getattr(self.data_loader, "samples", None)

    @property
    def local_samples(self) -> int | None:
        """Samples that this rank has received in this attempt, or None if no one counts them."""
        return self._batches.local_samples

    @property
    def mixed_precision(self) -> torch.dtype | None:
        """Dtype of autocast, which is torch.bfloat16, torch.float16 or None."""
        return self.precision.dtype if self.precision.is_mixed else None

    unwrap = staticmethod(unwrap)

    @property
    def unwrapped_model(self) -> nn.Module:
        return unwrap(self.model)
