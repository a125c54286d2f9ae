"""Forward passes that do not change training."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from launcher.process.rng import isolated_rng


@contextmanager
def in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without gradients; restore mode and random state at the end."""
    was_training = model.training
    model.eval()
    try:
        with isolated_rng(), torch.no_grad():
            yield
    finally:
        model.train(was_training)


def uncompiled() -> AbstractContextManager[object]:
    """Run without compiled code, which skips modules' hooks and cannot be counted."""
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )
