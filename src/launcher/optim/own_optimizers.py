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
        self._parts: dict[str, Any] = {name: _part(model, name) for name in owned(model)}
        if not self.param_groups:
            raise ConfigError(
                f"model: {type(model).__name__}.owns_optimizers={owned(model)}: none of them is a"
                " torch.optim.Optimizer."
            )
        super().__init__(self.param_groups, {})

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The current groups, since an optimizer replaces them when it is loaded."""
        groups = []
        for part_name, part in self._parts.items():
            for number, group in enumerate(part.param_groups if _is_optimizer(part) else ()):
                several = f".{number}" if len(part.param_groups) > 1 else ""
                group.setdefault("name", f"{part_name}{several}")
                groups.append(group)
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        """Ignore the list that the base class makes."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Leave the groups to the model's optimizers."""

    def step(self) -> None:  # type: ignore[override]
        """Do nothing, since the forward pass has made the step."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing, since the model decides which gradients it keeps."""

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


def owned(model: nn.Module) -> tuple[str, ...]:
    """Return the names that a model declares as `owns_optimizers`."""
    names = getattr(model, "owns_optimizers", ())
    is_list_of_names = isinstance(names, tuple | list) and all(isinstance(n, str) for n in names)
    if not names or not is_list_of_names:
        raise ConfigError(
            f"optimizer=none: {type(model).__name__} should declare the optimizers that it steps"
            ' itself; e.g. owns_optimizers = ("optimizer",), or use optimizer=adamw.'
        )
    return tuple(names)


def _part(model: nn.Module, name: str) -> Any:
    part: Any = getattr(model, name, None)
    where = f"model: {type(model).__name__}.owns_optimizers names {name!r}"
    if not all(hasattr(part, method) for method in ("state_dict", "load_state_dict")):
        raise ConfigError(
            f"{where}, which should be an optimizer or a schedule when the model is built; it is"
            f" {describe_type(part)}."
        )
    if _is_optimizer(part):
        own = {id(p) for p in model.parameters()}
        if any(id(p) not in own for group in part.param_groups for p in group["params"]):
            raise ConfigError(
                f"{where}, which has a parameter that is not the model's; make the optimizers"
                " after the parameters, in the constructor."
            )
    return part


def _is_optimizer(part: object) -> bool:
    return isinstance(part, Optimizer)
