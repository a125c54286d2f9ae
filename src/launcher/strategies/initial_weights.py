"""Initial weights, which are the same under every strategy and on any number of ranks."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from launcher.models.declared import constructor_makes_weights, declared_method
from launcher.models.own_memory import give_own_memory
from launcher.process import ranks
from launcher.process.rng import restore_rng, rng_state
from launcher.strategies.base import BuildModel

logger = logging.getLogger(__name__)


def build(build_model: BuildModel, device: torch.device) -> nn.Module:
    """Build a model with rank 0's random numbers, so that all ranks have the same weights."""
    with same_draws():
        return draw(build_model, device)


def draw(build_model: BuildModel, device: torch.device) -> nn.Module:
    """Build a model and initialize its weights on `device`.

    `init_weights()`, if the model declares it, starts from the same random state as the
    constructor. Otherwise the weights are those that the constructor made or loaded.
    """
    start = rng_state()
    with device:
        model = build_model()
    model.to(device)
    init_weights = declared_method(model, "init_weights")
    if init_weights is not None:
        restore_rng(start)
        init_weights()
    give_own_memory(model)
    return model


def outline(build_model: BuildModel) -> nn.Module | None:
    """Return the model on the meta device, or None if its weights are made by its constructor."""
    try:
        with torch.device("meta"):
            model = build_model()
    # An error that the meta device has not caused is raised again when the model is built.
    except Exception:
        logger.debug("The model cannot be built without memory", exc_info=True)
        return None
    if constructor_makes_weights(model):
        return None
    values = (value for module in model.modules() for value in vars(module).values())
    has_unregistered = any(isinstance(value, torch.Tensor) and value.is_meta for value in values)
    return None if has_unregistered else model


@contextmanager
def same_draws() -> Iterator[None]:
    """Let every rank draw rank 0's random numbers, then restore the others' own state."""
    saved = rng_state()
    restore_rng(ranks.broadcast(saved))
    try:
        yield
    finally:
        if ranks.rank() != 0:
            restore_rng(saved)
