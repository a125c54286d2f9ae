"""Several optimizers as one, for a generator and a discriminator, or an actor and a critic."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from launcher.config.messages import closest_name, hint
from launcher.errors import ConfigError
from launcher.optim.combined import CombinedOptimizer
from launcher.optim.optimizers import check_step
from launcher.types import NonNegativeFloat


class OptimizerParts(CombinedOptimizer):
    """Several optimizers by name, as one; each updates its parameters in turn.

    Args:
        parts: the optimizers by name, in the order of their turns.
        max_grad_norm: the 2-norm to which a part's gradients are clipped (None: not at all), if it
            differs from the trainer's.
    """

    def __init__(
        self,
        parts: Mapping[str, Optimizer],
        max_grad_norm: Mapping[str, float | None] | None = None,
    ):
        self.parts, self.max_grad_norm = dict(parts), dict(max_grad_norm or {})
        _check(self.parts, self.max_grad_norm)
        for name, part in self.parts.items():
            groups = part.param_groups
            for i, group in enumerate(groups):
                group["name"] = name if len(groups) == 1 else f"{name}/{group.get('name', i)}"
        super().__init__(self.parts.values())

    @property
    def group_kinds(self) -> list[str]:
        return [
            f"{name}: {type(part).__name__}"
            for name, part in self.parts.items()
            for _ in part.param_groups
        ]

    def __getstate__(self) -> dict[str, Any]:
        state = {"parts": self.parts, "max_grad_norm": self.max_grad_norm}
        return {**super().__getstate__(), **state}


def has_own_state_dict(optimizer: Optimizer) -> bool:
    return any(
        getattr(type(optimizer), name, default) is not default
        for name, default in (
            ("state_dict", Optimizer.state_dict),
            ("load_state_dict", Optimizer.load_state_dict),
        )
    )


def _check(parts: Mapping[str, Optimizer], limits: Mapping[str, float | None]) -> None:
    if not parts:
        raise ConfigError(
            "optimizer.parts: is empty; name an optimizer for each part of the model."
        )
    owners: dict[int, str] = {}
    for name, part in parts.items():
        if not hasattr(part, "param_groups"):
            raise ConfigError(
                f"optimizer.parts.{name}: should be a torch.optim.Optimizer; it is a"
                f" {type(part).__name__}."
            )
        check_step(part, f"optimizer.parts.{name}")
        if has_own_state_dict(part):
            raise ConfigError(
                f"optimizer.parts.{name}: {type(part).__name__} has a state_dict() or"
                " load_state_dict() of its own, which several optimizers do not support; use"
                " another optimizer."
            )
        for p in (p for group in part.param_groups for p in group["params"]):
            if (other := owners.setdefault(id(p), name)) != name:
                raise ConfigError(
                    f"optimizer.parts.{name}: has a parameter of shape {list(p.shape)} that"
                    f" {other} has too; give each parameter to one part."
                )
    if unknown := limits.keys() - parts.keys():
        raise ConfigError(_unknown("max_grad_norm", min(unknown), parts))


def _unknown(key: str, name: str, parts: Mapping[str, object]) -> str:
    return f"optimizer.{key}.{name}: is not one of optimizer.parts{hint(name, parts)}"


def optimizer_parts(
    model: nn.Module,
    *,
    parts: dict[str, Any],
    turns: list[str] | None = None,
    modules: dict[str, list[str]] | None = None,
    max_grad_norm: dict[str, NonNegativeFloat | None] | None = None,
) -> OptimizerParts:
    """Several optimizers, each of the parameters of a module.

    Args:
        model: the model with these modules.
        parts: the optimizers, by the name of the module whose parameters they update.
        turns: the order in which they update in a step; None: by name.
        modules: the modules (or parameters) of a part, if it is not the one of its name.
        max_grad_norm: the 2-norm to which a part's gradients are clipped, if it is not
            trainer.max_grad_norm; null: not clipped.
    """
    order = sorted(parts) if turns is None else list(turns)
    if sorted(order) != sorted(parts):
        raise ConfigError(
            f"optimizer.turns=[{','.join(order)}]: should have each of optimizer.parts once"
            f" ({', '.join(sorted(parts))})."
        )
    of_part = dict(modules or {})
    if unknown := of_part.keys() - parts.keys():
        raise ConfigError(_unknown("modules", min(unknown), parts))
    made: dict[str, Any] = {}
    for name in order:
        if not callable(parts[name]):
            raise ConfigError(
                f"optimizer.parts.{name}: has no _target_; name its optimizer, e.g."
                f" optimizer.parts.{name}._target_=torch.optim.Adam."
            )
        key = f"optimizer.modules.{name}" if name in of_part else f"optimizer.parts.{name}"
        module = _module(model, of_part.get(name, [name]), key)
        made[name] = call_factory(parts[name], module)
    optimizer = OptimizerParts(made, max_grad_norm)
    _check_trained(model, optimizer)
    return optimizer


def _check_trained(model: nn.Module, optimizer: OptimizerParts) -> None:
    """Check that each trainable parameter is in a part."""
    taken = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, p in model.named_parameters():
        if p.requires_grad and id(p) not in taken:
            raise ConfigError(
                f"optimizer.parts: the parameter {name} is in no part"
                f" ({', '.join(optimizer.parts)}); add a part of its module, or freeze it"
                " (requires_grad_(False))."
            )


def _module(model: nn.Module, names: Sequence[str], key: str) -> nn.Module:
    """Return a module with the parameters of the named modules and parameters."""
    members = [_find_module(model, name, key) for name in names]
    if len(members) == 1 and isinstance(members[0], nn.Module):
        return members[0]
    modules = [part for part in members if isinstance(part, nn.Module)]
    single = [part for part in members if isinstance(part, nn.Parameter)]
    return nn.ModuleList([*modules, *([nn.ParameterList(single)] if single else [])])


def _find_module(model: nn.Module, name: str, key: str) -> nn.Module | nn.Parameter:
    for get in (model.get_submodule, model.get_parameter):
        try:
            return get(name)
        except AttributeError:
            continue
    names = [child for child, _ in model.named_children()]
    names += [name for name, _ in model.named_parameters(recurse=False)]
    near = closest_name(name, names)
    advice = f"did you mean {near}?" if near else f"it has {', '.join(names[:8])}."
    raise ConfigError(f"{key}: {type(model).__name__} has no module or parameter {name}; {advice}")


def call_factory(factory: Callable[..., object], model: nn.Module) -> Any:
    """Call a factory with the model if that is its first parameter, else with its parameters."""
    first = next(iter(inspect.signature(getattr(factory, "func", factory)).parameters))
    parameters = [p for p in model.parameters() if p.requires_grad]
    if first != "model" and not parameters:
        raise ConfigError(
            f"model._target_={type(model).__name__}: has no parameter to train; use another model."
        )
    return factory(model if first == "model" else parameters)
