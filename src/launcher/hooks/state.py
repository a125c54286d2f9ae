"""What hooks add to a checkpoint, each under its own name, and how they get it back."""

from collections import Counter
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from launcher.errors import TrainingError
from launcher.hooks.base import BaseHook, TrainerView, overrides
from launcher.strategies.weights import model_tensors

SHARED = ("model", "training_state")
"""Keys that every hook sees beside its own."""


def hook_states(trainer: TrainerView, training_state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What each hook adds, by the hook's name.

    A hook sees the model's live tensors, which it cannot replace here, and `training_state`, to which it may add.

    Raises:
        TrainingError: a hook has replaced one of the two.
    """
    model = MappingProxyType(model_tensors(trainer.model))
    states = {}
    for name, hook in named(trainer.hooks):
        if overrides(hook, "on_state_dict"):
            state: dict[str, Any] = {"model": model, "training_state": training_state}
            hook.on_state_dict(trainer, state)
            if state.pop("model", None) is not model or state.pop("training_state", None) is not training_state:
                raise TrainingError(
                    f"{name}.on_state_dict replaced 'model' or 'training_state', which a checkpoint does not support; "
                    "store the values under another key."
                )
            states[name] = state
    return states


def load_hook_states(
    trainer: TrainerView, states: dict[str, dict[str, Any]], shared: dict[str, Any], is_complete: bool = True
) -> None:
    """Give each hook `shared`, the keys of hooks of other classes, and its own.

    Args:
        is_complete: `states` names every hook that saves; one that it does not name is new, and gets nothing.
    """
    for name, hook in named(trainer.hooks):
        if is_complete and name not in states and overrides(hook, "on_state_dict"):
            continue
        others = {k: v for other, state in states.items() if _class(other) != _class(name) for k, v in state.items()}
        hook.on_load_state_dict(trainer, {**others, **shared, **states.get(name, {})})


def named(hooks: Sequence[BaseHook]) -> Iterator[tuple[str, BaseHook]]:
    """Hooks by class; the second of a class is `LoggingHook#2`."""
    counts: Counter[str] = Counter()
    for hook in hooks:
        name = type(hook).__name__
        counts[name] += 1
        yield (name if counts[name] == 1 else f"{name}#{counts[name]}"), hook


def _class(name: str) -> str:
    return name.partition("#")[0]
