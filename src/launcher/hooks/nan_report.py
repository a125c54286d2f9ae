"""Finds the first module with an output or gradient that is not finite."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import torch

from launcher.config.schema.matters_from import never
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import BaseHook
from launcher.hooks.evaluation_mode import without_compilation
from launcher.hooks.records import map_nested_tensor
from launcher.hooks.state import reject_flat_buffers
from launcher.hooks.view import TrainerView
from launcher.process import ranks
from launcher.process.rng import isolated_rng
from launcher.strategies.sharded import local
from launcher.strategies.weights import unwrap
from launcher.types import PositiveInt


class NanReportHook(BaseHook):
    """Reports the first non-finite value of an update that is skipped because of its gradient.

    It repeats the passes over the update's batches, which does not change training. For each rank
    it logs the first non-finite value: in a batch, a weight, a module's output, or a gradient.
    Until then, it only keeps references to the batches of two steps.

    Args:
        max_reports: at most this many reports per attempt.
    """

    changes_numbers = False
    provides = ()
    matters_from: ClassVar = {"*": never}

    def __init__(self, max_reports: PositiveInt = 3):
        self.max_reports = max_reports
        self.reports = 0
        self._batches: dict[int, list[object]] = {}
        self._skipped = 0

    def on_start(self, trainer: TrainerView) -> None:
        reject_flat_buffers(trainer, "hooks.nan_report", "gradients")
        if not trainer.strategy.needs_graph:
            raise ConfigError(
                "hooks.nan_report: the model steps its own optimizers (owns_optimizers), so a step"
                " cannot be repeated; leave it out."
            )

    def on_ready(self, trainer: TrainerView) -> None:
        self._skipped = trainer.state.skipped_steps

    def on_before_step(self, trainer: TrainerView) -> None:
        self._batches = {trainer.step - 1: self._batches.get(trainer.step - 1, [])}

    def on_batch(self, trainer: TrainerView, batch: object) -> None:
        self._batches.setdefault(trainer.step, []).append(batch)

    def on_after_step(self, trainer: TrainerView) -> None:
        is_new = (
            trainer.state.skipped_steps > self._skipped
            or trainer.step_info["non_finite_grad_retry_count"] > 0
        )
        self._skipped = trainer.state.skipped_steps
        if is_new and not self._is_search_for_a_scale(trainer):
            self._report(trainer)

    def on_error(self, trainer: TrainerView, error: Exception) -> None:
        has_retried = trainer.step_info.get("non_finite_grad_retry_count")
        if isinstance(error, TrainingError) and has_retried:
            self._report(trainer)

    def _is_search_for_a_scale(self, trainer: TrainerView) -> bool:
        """Return whether a loss scaler has only found out that its scale was too high."""
        is_finite = all(math.isfinite(loss) for loss in map(float, trainer.step_info["loss"]))
        return trainer.strategy.scaler.is_enabled() and not ranks.maximum(not is_finite)

    def _report(self, trainer: TrainerView) -> None:
        if self.reports >= self.max_reports:
            return
        self.reports += 1
        # An accelerator reports a skipped step one step later.
        for step in sorted(self._batches, reverse=True):
            findings = ranks.all_gather(self._repeat(trainer, self._batches[step]))
            for rank, finding in enumerate(findings):
                if finding is not None:
                    trainer.logger.warning("Step %d, rank %d: %s", step, rank, finding)
            if any(findings):
                return
        trainer.logger.warning(
            "Step %d: repeated with the current weights, every output and gradient is finite.",
            trainer.step,
        )

    def _repeat(self, trainer: TrainerView, batches: list[object]) -> str | None:
        """Describe this rank's first non-finite value. All ranks make the same passes."""
        model = unwrap(trainer.model)
        strategy = trainer.strategy
        finding = _in_inputs(model, batches)
        with _keep_state(model), without_compilation(), _watched(model) as (outputs, gradients):
            for batch in batches:
                with strategy.grad_sync(True):
                    with strategy.forward_context():
                        loss, _ = trainer.forward(batch)
                    if loss is not None:
                        # The backward pass is repeated without a loss scale.
                        loss.backward()
        grads = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
        bad = [name for name, grad in grads if not local(grad).isfinite().all()]
        strategy.zero_grad()
        finding = finding or next(iter(outputs), None)
        # The gradients of the other ranks have this rank's values in them.
        if ranks.maximum(finding is not None):
            return finding
        if gradients:
            return gradients[0]
        if bad:
            names = ", ".join(bad[:3])
            return f"the gradient of {names} is not finite; the gradient of every output is."
        return None


@contextmanager
def _keep_state(model: torch.nn.Module) -> Iterator[None]:
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with isolated_rng():
        try:
            yield
        finally:
            for buffer, before in buffers:
                buffer.copy_(before)


@contextmanager
def _watched(model: torch.nn.Module) -> Iterator[tuple[list[str], list[str]]]:
    """Note the first module whose output is not finite, and the first gradient by an output."""
    outputs: list[str] = []
    gradients: list[str] = []

    def check_gradient(name: str, gradient: torch.Tensor) -> None:
        if not gradients and (text := describe_not_finite(gradient)):
            gradients.append(
                f"every output is finite, and the gradient by the output of {name or 'the model'}"
                f" is the first that is not: {text}."
            )

    def check(name: str, module: torch.nn.Module, inputs: object, output: object) -> None:
        if not outputs and (text := describe_not_finite(output)):
            its_input = describe_not_finite(inputs)
            outputs.append(
                f"the output of {name or 'the model'} ({type(module).__name__}) is the first that"
                f" is not finite: {text}; its input "
                + (f"has {its_input}." if its_input else f"is at most {_largest(inputs):.4g}.")
            )
        watch = partial(check_gradient, name)
        map_nested_tensor(lambda t: t.register_hook(watch) if t.requires_grad else None, output)

    handles = [
        module.register_forward_hook(partial(check, name)) for name, module in model.named_modules()
    ]
    try:
        yield outputs, gradients
    finally:
        for handle in handles:
            handle.remove()


def _in_inputs(model: torch.nn.Module, batches: list[object]) -> str | None:
    text = describe_not_finite(batches)
    if text:
        return f"the batch has {text}."
    for name, tensor in model.named_parameters():
        text = describe_not_finite(local(tensor))
        if text:
            return f"the weight {name} has {text}."
    return None


def _tensors(values: object) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    map_nested_tensor(tensors.append, values)
    return [t.detach() for t in tensors if t.is_floating_point() or t.is_complex()]


def describe_not_finite(values: object) -> str | None:
    """Describe how many values are not finite, or return None if all are finite."""
    nans = 0
    infinite = 0
    total = 0
    for tensor in _tensors(values):
        nans += int(tensor.isnan().sum())
        infinite += int(tensor.isinf().sum())
        total += tensor.numel()
    if nans or infinite:
        return f"{nans} NaN and {infinite} infinite of {total} values"
    return None


def _largest(values: object) -> float:
    largest = [float(tensor.abs().max()) for tensor in _tensors(values) if tensor.numel()]
    return max(largest, default=0.0)
