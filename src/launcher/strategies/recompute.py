"""Recompute the activations of blocks in the backward pass (Chen et al. 2016, arXiv:1604.06174).

Blocks keep only their input. Numbers do not change, since random states are replayed.
"""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from launcher.errors import ConfigError
from launcher.models.declared import declared_units
from launcher.process.plural import plural


def recompute_units(model: nn.Module, every: int) -> None:
    """Recompute every `every`-th of the model's `shard_units()`, with 1 all of them.

    Their `forward` is wrapped in place, so module names stay the same, and a strategy's hooks on a
    block's call (gathering its weights) run outside of it.
    """
    key = f"trainer.activation_checkpointing={'full' if every == 1 else every}"
    units = declared_units(model)
    if not units:
        raise ConfigError(
            f"{key}: {type(model).__name__} has no shard_units() to recompute; use none."
        )
    if every > len(units):
        raise ConfigError(
            f"{key}: {type(model).__name__} has {plural(len(units), 'block')}; use"
            f" {len(units)} or less."
        )
    for unit in units[every - 1 :: every]:
        unit.forward = partial(checkpoint, unit.forward, use_reentrant=False)
