"""The state that hooks add to a checkpoint, each under its own name, and restoring it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import overrides
from launcher.hooks.view import State, TrainerView
from launcher.resume.trainer import name_by_class
from launcher.strategies.base import Shape, ShardSpec, Tensors
from launcher.strategies.sharded import ShardedLike, shards_to_write
from launcher.strategies.weights import model_tensors


def hook_states(trainer: TrainerView, training_state: State) -> dict[str, State]:
    """Return the state of each hook, by the hook's name.

    A hook sees the model's live tensors, which it cannot replace here, and `training_state`, to
    which it may add.
    """
    model = MappingProxyType(model_tensors(trainer.model))
    states = {}
    for name, hook in name_by_class(trainer.hooks):
        if overrides(hook, "on_state_dict"):
            state: State = {"model": model, "training_state": training_state}
            hook.on_state_dict(trainer, state)
            inputs = state.pop("model", None), state.pop("training_state", None)
            if inputs[0] is not model or inputs[1] is not training_state:
                raise TrainingError(
                    f"{name}.on_state_dict replaced 'model' or 'training_state', which a checkpoint"
                    " does not support; store the values under another key."
                )
            states[name] = state
    return states


def load_hook_states(
    trainer: TrainerView,
    states: dict[str, State],
    shared: State,
    is_complete: bool = True,
) -> None:
    """Pass each hook `shared`, the keys of hooks of other classes, and its own keys.

    If `states` is complete, a hook that is not in it is new, and gets nothing.
    """
    for name, hook in name_by_class(trainer.hooks):
        if is_complete and name not in states and overrides(hook, "on_state_dict"):
            continue
        others = {
            k: v
            for other, state in states.items()
            if _class(other) != _class(name)
            for k, v in state.items()
        }
        hook.on_load_state_dict(trainer, {**others, **shared, **states.get(name, {})})


def full_state(trainer: TrainerView, options: Any) -> State:
    """Return `model`, `training_state` and the hooks' entries, in memory, as full tensors."""
    # Importing torch.distributed.checkpoint takes 1 s, and only this call needs it.
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(trainer.model, trainer.optimizer, options=options)
    training_state = trainer.training_state()
    hooks = hook_states(trainer, training_state)
    tensors = {name: companion.whole() for name, companion in hook_tensors(trainer).items()}
    # The first one counts.
    merged = {key: value for state in reversed(hooks.values()) for key, value in state.items()}
    state = {"model": model, "training_state": training_state | {"optimizer": optimizer}}
    return {**merged, **state, "hooks": hooks, "hook_tensors": tensors}


def load_full_state(trainer: TrainerView, state: State, options: Any) -> None:
    from torch.distributed.checkpoint.state_dict import set_state_dict

    # A state of trainloop has fewer keys.
    missing = trainer.training_state() | {"data_loader": None}
    training_state = missing | state["training_state"]
    trainer.load_training_state(training_state)
    set_state_dict(
        trainer.model,
        trainer.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=training_state["optimizer"],
        options=options,
    )
    trainer.restore_schedule(training_state)
    for hook in trainer.hooks:
        hook.load_tensors(trainer, InMemory(state.get("hook_tensors", {})))
    hooks = state.get("hooks")
    load_hook_states(trainer, hooks or {}, state, is_complete=hooks is not None)


def hook_tensors(trainer: TrainerView) -> dict[str, ShardedLike]:
    tensors: dict[str, ShardedLike] = {}
    for name, hook in name_by_class(trainer.hooks):
        added = hook.state_tensors(trainer)
        common = added.keys() & tensors.keys()
        if common:
            raise ConfigError(
                f"hooks: {name} and another hook both store {min(common)}; give them different"
                " names."
            )
        tensors |= added
    return tensors


def hook_shards(trainer: TrainerView) -> tuple[Tensors, dict[str, ShardSpec]]:
    """Return the shards of `hook_tensors` that this rank writes, and their positions."""
    return shards_to_write(hook_tensors(trainer), trainer.strategy.ranks)


class InMemory:
    """Full tensors by name, as hooks read them from a checkpoint."""

    def __init__(self, tensors: Tensors):
        self.path = Path()
        self.meta = dict[str, Any]()
        self._tensors = tensors

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> Shape:
        return tuple(self._tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self._tensors[name].dtype

    def under_names(self, names: Mapping[str, str]) -> "InMemory":
        return InMemory({name: self._tensors[stored] for name, stored in names.items()})

    def concurrent_reads(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read_into(self, name: str, target: torch.Tensor, offset: Shape | None = None) -> None:
        starts = offset or (0,) * target.dim()
        box = tuple(slice(start, start + n) for start, n in zip(starts, target.shape, strict=True))
        target.copy_(self._tensors[name][box])


def reject_flat_buffers(trainer: TrainerView, key: str, use: str) -> None:
    if not trainer.strategy.has_plain_tensors:
        raise ConfigError(
            f"{key}: strategy={trainer.strategy.name} keeps weights and gradients in flat buffers"
            f" of its own, whose {use} are not supported; use strategy=fsdp, or leave {key} out."
        )


def _class(name: str) -> str:
    return name.partition("#")[0]
