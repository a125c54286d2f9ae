"""The optimizers of a model that steps them itself, seen as one."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from launcher.config.messages import describe_type
from launcher.errors import ConfigError, TrainingError


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

    def state_dict(self) -> dict[str, Any]:
        return {
            name: {"class": type(part).__name__, "state": part.state_dict()}
            for name, part in self._parts.items()
        }

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


def _part(model: nn.Module, name: str) -> Any:
    part: Any = getattr(model, name, None)
    where = f"model: {type(model).__name__}.owns_optimizers names {name!r}"
    if not all(hasattr(part, method) for method in ("state_dict", "load_state_dict")):
        raise ConfigError(
            f"{where}, which should be an optimizer or a schedule when the model is built; it is"
            f" {describe_type(part)}."
        )
    own = {id(parameter) for parameter in model.parameters()}
    groups = part.param_groups if isinstance(part, Optimizer) else []
    if any(id(parameter) not in own for group in groups for parameter in group["params"]):
        raise ConfigError(
            f"{where}, which has a parameter that is not the model's; make the optimizers after the"
            " parameters, in the constructor."
        )
    return part
