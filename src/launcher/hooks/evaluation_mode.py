"""Forward passes that do not change training."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from launcher.process.rng import isolated_rng
from launcher.strategies.weights import unwrap


@contextmanager
def in_evaluation(model: torch.nn.Module, needs_outputs: bool = True) -> Iterator[None]:
    """Switch to evaluation mode without gradients; restore mode and random state at the end.

    See `Model.needs_outputs`.
    """
    was_training, inner = model.training, unwrap(model)
    model.eval()
    if not needs_outputs:
        inner.needs_outputs = False  # type: ignore[assignment]
    try:
        with isolated_rng(), torch.no_grad():
            yield
    finally:
        model.train(was_training)
        vars(inner).pop("needs_outputs", None)


def without_compilation() -> AbstractContextManager[object]:
    """Run without compiled code, which skips modules' hooks and cannot be counted."""
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )
