"""A step of several optimizers: each updates its parameters before the next one's turn."""

import inspect
from collections.abc import Callable, Sequence

import torch

from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import BaseHook, Records, StepInfo
from launcher.optim.parts import OptimizerParts
from launcher.optim.schedulers import AnyScheduler, SchedulerParts
from launcher.process import deadline, signals
from launcher.process.ranks import any_rank
from launcher.strategies.base import Strategy
from launcher.strategies.missing_loss import check_missing_loss
from launcher.strategies.step import StepResult
from launcher.train.batches import weigh

Forward = Callable[[object, str], tuple[torch.Tensor | None, Records]]


class AlternatingUpdates:
    """The turns of a step. `forward` is called with a batch and the name of an optimizer."""

    def __init__(self, optimizers: OptimizerParts, strategy: Strategy, forward: Forward):
        self.optimizers, self.strategy, self.forward = optimizers, strategy, forward

    def take(
        self,
        step: int,
        batches: Sequence[tuple[object, torch.Tensor | None]],
        info: StepInfo,
        schedules: SchedulerParts | None,
    ) -> StepResult:
        """Let each optimizer update its parameters once, unless `forward` returns no loss for it.

        All use the same micro-batches, each with the factor of its loss. `info` gets the sum of the
        losses and the records of each micro-batch, with the losses and gradient norms by optimizer.
        Only the schedules of updated optimizers make a step. The result has the norm over all
        gradients, and is skipped if the update of any optimizer was.
        """
        losses: list[list[torch.Tensor]] = [[] for _ in batches]
        records: list[dict[str, object]] = [{} for _ in batches]
        norms, is_skipped = [], False
        for name in self.optimizers.parts:
            self.strategy.take_turn(name)
            has_loss = self._accumulate(step, name, batches, losses, records)
            if not any_rank([has_loss])[0]:
                continue
            result = self.strategy.step()
            if result.grad_norm is not None:
                records[0][f"grad_norm/{name}"] = result.grad_norm
                norms.append(result.grad_norm)
            is_skipped |= bool(result.skipped)
            if not result.skipped and schedules is not None and name in schedules.parts:
                schedules.parts[name].step()
        if not all(losses):
            raise TrainingError(f"Step {step}: forward returned no loss for any optimizer.")
        self.strategy.end_turns()
        info["loss"] = [torch.stack(parts).sum() for parts in losses]
        info["records"] = records
        norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else None
        return StepResult(norm, is_skipped)

    def _accumulate(
        self,
        step: int,
        name: str,
        batches: Sequence[tuple[object, torch.Tensor | None]],
        losses: list[list[torch.Tensor]],
        records: list[dict[str, object]],
    ) -> bool:
        """Run forward and backward for each micro-batch; return whether there were losses."""
        without = 0
        for number, (batch, weight) in enumerate(batches):
            if signals.first_signal():
                deadline.progress()
            with self.strategy.grad_sync(number == len(batches) - 1):
                with self.strategy.forward_context():
                    loss, metrics = self.forward(batch, name)
                if loss is None:
                    check_missing_loss(self.strategy, step)
                    without += 1
                    continue
                if weight is not None:
                    loss, metrics = weigh(loss, weight), weigh(metrics, weight)
                losses[number].append(loss.detach())
                records[number] |= {**metrics, f"loss/{name}": loss.detach()}
                self.strategy.backward(loss)
        if 0 < without < len(batches):
            raise TrainingError(
                f"Step {step}: forward returned a loss of {name} for"
                f" {len(batches) - without} of {len(batches)} micro-batches; return one for each,"
                " or for none."
            )
        return not without


def check_turns(
    strategy: Strategy,
    optimizers: OptimizerParts,
    schedules: AnyScheduler | None,
    hooks: Sequence[BaseHook],
    retries: int | None,
) -> None:
    """Check that a run with several optimizers has nothing that supports only one."""
    names = ", ".join(optimizers.parts)
    if not strategy.supports_parts:
        raise ConfigError(
            f"strategy={strategy.name}: does not support several optimizers ({names}); use one"
            " optimizer, or strategy=ddp."
        )
    if retries is not None:
        raise ConfigError(
            f"max_non_finite_grad_retries={retries}: a step of several optimizers ({names}) is not"
            " repeated, since the first has updated already; use None, which skips the update."
        )
    if schedules is not None and not isinstance(schedules, SchedulerParts):
        raise ConfigError(
            f"build_lr_scheduler: there are several optimizers ({names}); return a dict with the"
            " schedule of each by its name."
        )
    for name in schedules.parts.keys() - optimizers.parts.keys() if schedules is not None else ():
        raise ConfigError(f"build_lr_scheduler: {name} is not one of the optimizers ({names}).")
    for hook in hooks:
        if hook.needs_one_optimizer:
            raise ConfigError(
                f"{type(hook).__name__}: does not support several optimizers ({names}); leave it"
                " out."
            )


def check_takes_name(forward: Callable[..., object], name: str, optimizers: Sequence[str]) -> None:
    parameters = inspect.signature(forward).parameters.values()
    if not any(p.name == "optimizer" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise ConfigError(
            f"{name}: does not take the name of an optimizer, and there are several"
            f" ({', '.join(optimizers)}); write it as forward(batch, optimizer=None)."
        )
