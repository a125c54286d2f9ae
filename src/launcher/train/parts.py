"""The parts of a trainer beside its loop: settings, the methods of a subclass, hooks, and logging."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from launcher.config.arguments import check_bounds
from launcher.errors import ConfigError
from launcher.hooks.base import BaseHook, Records, RunContext, TrainState
from launcher.hooks.interval import Interval, steps_per_epoch
from launcher.hooks.records import flatten
from launcher.models.output import check_output, described
from launcher.optim.precision import Precision
from launcher.optim.schedulers import check_steps, needs_metric
from launcher.run.ranks import Agreement
from launcher.strategies.base import Strategy
from launcher.strategies.external import ExternalStrategy
from launcher.strategies.step import StepPlan
from launcher.strategies.weights import unwrap
from launcher.train.batches import Batches
from launcher.train.events import Schedule, calls, check_hook
from launcher.types import NonNegativeFloat, NonNegativeInt, PositiveInt

SHORT = (torch.float16, torch.bfloat16)


class TrainerParts:
    """The arguments and methods of `BaseTrainer` beside its loop.

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
        pause_at: `train` saves and returns at this step; the same run resumes from there. A step whose update was
            skipped is not saved, so the run then pauses at the next good one.
    Raises:
        ValueError: an argument has another value, or is out of bounds.
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
        state_dict_options: Any = None,
        logger: logging.Logger | None = None,
        *,
        max_skipped_steps: NonNegativeInt = 50,
        max_none_losses: NonNegativeInt = 100,
        pause_at: NonNegativeInt | None = None,
    ):
        check_bounds(type(self).__name__, TrainerParts.__init__, (), locals())
        if mixed_precision not in (None, "bf16", "fp16"):
            raise ValueError(f"mixed_precision={mixed_precision!r}: must be 'bf16', 'fp16' or None.")
        self.state = TrainState(max_steps)
        self.grad_clip = grad_clip
        self.max_non_finite_grad_retries = max_non_finite_grad_retries
        self.precision = Precision(mixed_precision or "fp32")  # type: ignore[arg-type]
        self.gradient_accumulation_steps = gradient_accumulation_steps or 1
        self.workspace = Path(workspace) if workspace is not None else None
        self.device = _device(device)
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
        self.is_fork = False
        self.resumed_rng: dict[str, Any] | None = None
        self.is_built = False
        self._has_logged = False

    # ------------------------------------------------------------------------------------- what a subclass provides
    def build_data_loader(self) -> Iterable[Any]:
        """Any iterable of batches; a finite one is restarted when it ends."""
        raise self._missing("build_data_loader(self)", "returns an iterable of batches")

    def build_model(self) -> nn.Module:
        raise self._missing("build_model(self)", "returns a torch.nn.Module")

    def build_optimizer(self) -> torch.optim.Optimizer:
        raise self._missing("build_optimizer(self)", "returns a torch.optim.Optimizer")

    def forward(self, input: Any) -> tuple[torch.Tensor | None, Records]:
        """The loss (0-d; None: skip this batch) and nested records of numbers or 0-d tensors to log."""
        raise self._missing("forward(self, batch)", "returns the loss and a dict of records")

    def _missing(self, method: str, purpose: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no {method.partition('(')[0]}; add {method}, which {purpose}."
        )

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
        return ExternalStrategy(
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

    # ------------------------------------------------------------------------------------------------ putting together
    def build(self) -> None:
        """Build every part, in this order. `train` calls it unless it was called before."""
        self.data_loader = self.build_data_loader()
        self._check("build_data_loader", self.data_loader, "an iterable of batches", "__iter__", "__getitem__")
        self.model = self.build_model()
        self._check("build_model", self.model, "a torch.nn.Module", "named_parameters")
        self.optimizer = self.build_optimizer()
        self._check("build_optimizer", self.optimizer, "a torch.optim.Optimizer", "param_groups")
        self.lr_scheduler = self.build_lr_scheduler()
        if self.lr_scheduler is not None:
            self._check("build_lr_scheduler", self.lr_scheduler, "a scheduler of torch.optim, or None", "step")
            check_steps(self.lr_scheduler, f"{type(self).__name__}.build_lr_scheduler")
        self.grad_scaler = self.build_grad_scaler()
        self._check("build_grad_scaler", self.grad_scaler, "a torch.amp.GradScaler", "unscale_")
        hooks = self.build_hooks()
        self._check("build_hooks", hooks, "a list of hooks", "__iter__")
        self.hooks = list(hooks)
        for hook in self.hooks:
            check_hook(hook, f"{type(self).__name__}.build_hooks")
        self.strategy = self.build_strategy()
        self._follow_loader()
        self._bind_events()
        self._steps_by_metric = self.lr_scheduler is not None and needs_metric(self.lr_scheduler)
        self._agreement = Agreement()
        self.is_built = True

    def _check(self, method: str, part: Any, kind: str, *attributes: str) -> None:
        """
        Raises:
            ConfigError: what a method of the subclass has returned has none of the attributes of its kind.
        """
        if isinstance(part, type) or not any(hasattr(part, attribute) for attribute in attributes):
            raise ConfigError(f"{type(self).__name__}.{method} should return {kind}; it returned {described(part)}.")

    def checked_forward(self, input: Any) -> tuple[torch.Tensor | None, Records]:
        """`forward`, and a check of what it returns."""
        output = self.forward(input)
        check_output(output, self._forward_name())
        return output

    def _forward_name(self) -> str:
        return f"{type(self).__name__}.forward"

    def _check_next_forward(self) -> None:
        """Let the next call of `forward` check what it returns. Further calls cost nothing more than before."""
        own = vars(self).get("forward")

        def checked(input: Any) -> tuple[torch.Tensor | None, Records]:
            del vars(self)["forward"]
            if own is not None:
                vars(self)["forward"] = own
            loss, records = self.checked_forward(input)
            if loss is not None and loss.dtype in SHORT and self.num_targets(input) is not None:
                self.logger.warning(
                    "%s returns a loss in %s, in which the weight of a batch by its targets is rounded; compute the "
                    "loss in float32 (logits.float()).", self._forward_name(), str(loss.dtype).removeprefix("torch."),
                )  # fmt: skip
            return loss, records

        vars(self)["forward"] = checked

    def _follow_loader(self) -> None:
        self._batches = Batches(self.data_loader, self.logger)
        self.source = self._batches.source

    def _bind_events(self) -> None:
        if self._batches.loader is not self.data_loader:  # a hook has replaced it
            self._follow_loader()
        self._events = calls(self.hooks)
        self._after_step = Schedule(self.hooks, "on_after_step")
        self._at_boundary = Schedule(self.hooks, "on_step_boundary")
        self._collected = [hook.collected_step_infos for hook in self.hooks if hook.collected_step_infos is not None]
        counts_epochs = any(self._events[event] for event in ("on_epoch_start", "on_epoch_end"))
        self._epoch = Interval("1epoch", "epoch") if counts_epochs and steps_per_epoch(self) else None
        has_calls = bool(self._events["on_before_optimizer_step"])
        self.strategy.before_clip = (lambda: self.fire("on_before_optimizer_step")) if has_calls else None

    def fire(self, event: str, *args: Any, **options: Any) -> None:
        """Call every hook that does something on an event."""
        for call in self._events[event]:
            call(self, *args, **options)

    # ---------------------------------------------------------------------------------------------- progress and logs
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
        """Whether training ends with the current step, which a run logs, evaluates and saves in any case."""
        return self.state.is_at_end()

    @property
    def samples(self) -> int | None:
        """Samples consumed by all ranks, where the loader counts them."""
        return getattr(self.data_loader, "samples", None)

    @classmethod
    def unwrap(cls, module: nn.Module) -> nn.Module:
        return unwrap(module)

    @property
    def unwrapped_model(self) -> nn.Module:
        return unwrap(self.model)

    def log(self, records: dict[str, Any], dry_run: bool = False) -> None:
        """Pass nested records of numbers to every hook. `dry_run`: hooks only report what they would do."""
        if not dry_run:
            self.state.metrics.update(flatten(records))
        self._has_logged = True
        self.fire("on_log", records, dry_run=dry_run)

    def log_scalars(self, records: dict[str, Any], dry_run: bool = False) -> None:
        """The name of `log` in trainloop 0.11."""
        self.log(records, dry_run=dry_run)

    def log_images(self, records: dict[str, Any], dry_run: bool = False) -> None:
        """Pass nested records of images to every hook: of PIL, arrays [H, W, C] or tensors [C, H, W]."""
        self._has_logged = True
        self.fire("on_log_images", records, dry_run=dry_run)

    def log_histograms(self, records: dict[str, Any], dry_run: bool = False) -> None:
        """Pass nested records of tensors or arrays to every hook. All ranks call it."""
        self._has_logged = True
        self.fire("on_log_histograms", records, dry_run=dry_run)


def _device(device: torch.device | str | int | None) -> torch.device:
    """
    Raises:
        ValueError: torch has no such device.
    """
    if device is None:
        return torch.get_default_device()
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r}: should be a device of torch: 'cpu', 'cuda', 'cuda:1', 'mps'.") from error
