"""Evaluates the weights of `optimizer.eval()`, where an optimizer trains with others."""

import torch

from launcher.checkpoint.stored import EVALUATION
from launcher.errors import ConfigError
from launcher.hooks.base import BaseHook
from launcher.hooks.ema import EmaHook
from launcher.hooks.evaluation import EvaluationHook
from launcher.hooks.state import reject_flat_buffers
from launcher.hooks.view import TrainerView
from launcher.strategies.base import Tensors
from launcher.strategies.sharded import ShardedLike, local
from launcher.strategies.weights import model_tensors, unwrap


class EvaluationWeightsHook(BaseHook):
    """Calls an optimizer's `eval()` and `train()` around evaluations.

    Schedule-free optimizers have them (Defazio et al. 2024, arXiv:2405.15682). Each checkpoint has
    the weights of `eval()` too, which everything but a resume and a fork reads. A trainer adds this
    hook itself.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._kept: Tensors = {}
        # The optimizer has no state yet, so no weight changes.
        optimizer.train()  # type: ignore[attr-defined]

    def on_start(self, trainer: TrainerView) -> None:
        reject_flat_buffers(trainer, "optimizer", "train() and eval()")
        name = type(trainer.optimizer).__name__
        if any(isinstance(hook, EmaHook) and hook.evaluate for hook in trainer.hooks):
            raise ConfigError(
                f"hooks.ema.evaluate=true: {name} evaluates weights of its own; set it to false."
            )
        if any(isinstance(hook, EvaluationHook) and hook.test == "best" for hook in trainer.hooks):
            raise ConfigError(
                f"hooks.evaluation.test=best: {name} evaluates weights of its own; use"
                " hooks.evaluation.test=last, or job=evaluate of the best checkpoint."
            )

    @torch.no_grad()
    def on_evaluation_start(self, trainer: TrainerView) -> None:
        self._kept = {name: local(p).clone() for name, p in _find_updated(trainer).items()}
        trainer.optimizer.eval()  # type: ignore[attr-defined]

    @torch.no_grad()
    def on_evaluation_end(self, trainer: TrainerView) -> None:
        trainer.optimizer.train()  # type: ignore[attr-defined]
        # `train()` would only come close to them.
        for name, p in _find_updated(trainer).items():
            local(p).copy_(self._kept[name])
        self._kept = {}

    def state_tensors(self, trainer: TrainerView) -> dict[str, ShardedLike]:
        self.on_evaluation_start(trainer)
        try:
            return {
                EVALUATION + name: ShardedLike(local(p).clone(), p)
                for name, p in _find_updated(trainer).items()
            }
        finally:
            self.on_evaluation_end(trainer)


def switches_weights(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has `train()` and `eval()`."""
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


def _find_updated(trainer: TrainerView) -> Tensors:
    """Return the optimizer's parameters, by name."""
    ids = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    parameters = dict(unwrap(trainer.model).named_parameters())
    return {
        name: parameters[name]
        for name in model_tensors(trainer.model)
        if name in parameters and id(parameters[name]) in ids
    }
