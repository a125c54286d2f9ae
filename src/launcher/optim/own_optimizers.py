"""The optimizers of a model that steps them itself, seen as one."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from launcher.config.messages import describe_type
from launcher.errors import ConfigError, TrainingError
from launcher.process.object_marks import Restored


class OwnOptimizers(Optimizer):
    """Shows the groups of a model's optimizers, and saves and loads each by its own methods.

    Args:
        model: declares `owns_optimizers`, the names of its attributes that are optimizers and
            schedules.
    Raises:
        ConfigError: an attribute is neither, or an optimizer has parameters that are not the
            model's.
    """

    own_steps = True

    def __init__(self, model: nn.Module):
        names: Any = model.owns_optimizers
        self._parts: dict[str, Any] = {name: _part(model, name) for name in names}
        if not self.param_groups:
            raise ConfigError(
                f"model: {type(model).__name__}.owns_optimizers={names}: none of them is a"
                " torch.optim.Optimizer; name one."
            )
        for name, part in self._parts.items():
            groups = part.param_groups if isinstance(part, Optimizer) else []
            for number, group in enumerate(groups):
                group.setdefault("name", f"{name}.{number}" if len(groups) > 1 else name)
        super().__init__(self.param_groups, {})

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The current groups, since an optimizer replaces them when it is loaded."""
        optimizers = [part for part in self._parts.values() if isinstance(part, Optimizer)]
        return [group for optimizer in optimizers for group in optimizer.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        """Ignore the list that the base class makes."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Leave the groups to the model's optimizers."""

    def step(self) -> None:  # type: ignore[override]
        """Do nothing, since the forward pass has made the step."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Leave the gradients to the module, which may sum them over several steps."""

    def state_dict(self) -> dict[str, Any]:
        return {
            name: {
                "class": type(part).__name__,
                "state": part.state_dict(),
                "gradients": [parameter.grad for parameter in _parameters(part)],
            }
            for name, part in self._parts.items()
        }

    def add_restored(self, restored: Restored) -> None:
        """Add what `load_state_dict` restores, which is found below the model too."""
        for part in self._parts.values():
            restored.add_state(part, part.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        stored = {name: entry["class"] for name, entry in state.items()}
        current = {name: type(part).__name__ for name, part in self._parts.items()}
        if stored != current:
            raise TrainingError(
                f"The model owns the optimizers {current}; the checkpoint was written with"
                f" {stored}."
            )
        for name, part in self._parts.items():
            part.load_state_dict(state[name]["state"])
            parameters = _parameters(part)
            # A checkpoint of an earlier version has no gradients.
            gradients = state[name].get("gradients", [None] * len(parameters))
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.to(parameter.device)


def _parameters(part: Any) -> list[torch.Tensor]:
    groups = part.param_groups if isinstance(part, Optimizer) else []
    return [parameter for group in groups for parameter in group["params"]]


def _part(model: nn.Module, name: str) -> Any:
    part: Any = getattr(model, name, None)
    where = f"model: {type(model).__name__}.owns_optimizers names {name!r}"
    if not all(hasattr(part, method) for method in ("state_dict", "load_state_dict")):
        raise ConfigError(
            f"{where}, which should be an optimizer or a schedule when the model is built; it is"
            f" {describe_type(part)}."
        )
    own = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) not in own for parameter in _parameters(part)):
        raise ConfigError(
            f"{where}, which has a parameter that is not the model's; make the optimizers after the"
            " parameters, in the constructor."
        )
    return part
