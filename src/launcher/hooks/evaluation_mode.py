"""Forward passes that do not change training."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from launcher.hooks.view import TrainerView
from launcher.models.base import Model
from launcher.models.changes import Tensors
from launcher.models.modes import modes_of, set_modes
from launcher.process.rng import isolated_rng
from launcher.strategies.weights import unwrap

MAX_NAMES = 8
"""Names in a warning."""


@contextmanager
def in_evaluation(model: torch.nn.Module, needs_outputs: bool = True) -> Iterator[None]:
    """Switch to evaluation mode without gradients; restore modes and random state at the end.

    See `Model.needs_outputs`.
    """
    modes = modes_of(model)
    inner = unwrap(model)
    model.eval()
    leaves_out = isinstance(inner, Model) and not needs_outputs
    # An instance may have a value of its own, which is restored.
    own = vars(inner).get("needs_outputs")
    if leaves_out:
        inner.needs_outputs = False  # type: ignore[assignment]
    try:
        with isolated_rng(), torch.no_grad():
            yield
    finally:
        set_modes(modes)
        if leaves_out:
            del inner.needs_outputs
            if own is not None:
                inner.needs_outputs = own


@contextmanager
def evaluating(trainer: TrainerView, needs_outputs: bool = True) -> Iterator[None]:
    """Switch a trainer's model as `in_evaluation` does, and warn of tensors that change, once."""
    tensors = Tensors(unwrap(trainer.model))
    with in_evaluation(trainer.model, needs_outputs):
        yield
    told = trainer.context.changed_in_evaluation
    names = [name for name in tensors.changed() if name not in told]
    if names:
        told.update(names)
        trainer.logger.warning(
            "The forward pass changes %s in evaluation too, so training depends on the evaluations;"
            " change it only if the module's `training` is true.",
            ", ".join(names[:MAX_NAMES]),
        )


def without_compilation() -> AbstractContextManager[object]:
    """Run without compiled code, which skips modules' hooks and cannot be counted."""
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )
