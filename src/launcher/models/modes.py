"""The mode of each module of a model: training or evaluation.

A part may have another mode than the whole, such as a batch norm that keeps its statistics.
"""

from collections.abc import Mapping, Sequence

from torch import nn

Modes = Sequence[tuple[nn.Module, bool]]


def modes_of(model: nn.Module) -> Modes:
    return [(module, module.training) for module in model.modules()]


def set_modes(modes: Modes) -> None:
    """Set the modes of modules, outer ones first."""
    # A module's own `train()` may do more than set the mode, such as merge weights.
    for module, is_training in modes:
        if module.training != is_training:
            module.train(is_training)
    # A module may keep a mode of its own, and one that two others share has been set by both.
    for module, is_training in modes:
        if module.training != is_training:
            module.training = is_training


def start_training(model: nn.Module) -> list[str]:
    """Put a model into training mode; return the outermost modules that were in evaluation mode.

    A module that keeps its mode, by a `train()` of its own, is not returned, and "" is the model.
    """
    before = [(name, module) for name, module in model.named_modules() if not module.training]
    model.train()
    changed = [name for name, module in before if module.training]
    return [
        name
        for name in changed
        if not any(name != outer and f"{name}.".startswith(f"{outer}.") for outer in changed)
        and (not name or "" not in changed)
    ]


def own_modes(model: nn.Module) -> dict[str, bool]:
    """Return the modes that differ from the module around, by name, for a checkpoint.

    Around the model itself is training. So the result is empty for a model that trains as a whole.
    """
    modes = {name: module.training for name, module in model.named_modules()}
    return {name: mode for name, mode in modes.items() if mode != _around(name, modes)}


def restore_modes(model: nn.Module, stored: Mapping[str, bool]) -> list[str]:
    """Set the modes of `own_modes`; return the names that the model does not have."""
    modes: dict[str, bool] = {}
    wanted = []
    for name, module in model.named_modules():
        modes[name] = stored.get(name, _around(name, modes))
        wanted.append((module, modes[name]))
    set_modes(wanted)
    return sorted(stored.keys() - modes.keys())


def _around(name: str, modes: Mapping[str, bool]) -> bool:
    return modes[name.rpartition(".")[0]] if name else True
