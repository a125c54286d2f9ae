"""An optimizer's state by parameter name, for other strategies, wrappers and orders of groups."""

from collections.abc import Callable, Set
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from launcher.errors import TrainingError
from launcher.optim.arguments import has_own_state_dict
from launcher.optim.combined import MuonAdamW
from launcher.process.plural import plural
from launcher.strategies.base import TensorReader, Tensors
from launcher.strategies.sharded import read_into, zeros_like_shard
from launcher.strategies.weights import unwrap

Group = dict[str, Any]
"""A group of parameters in a checkpoint: their names, settings and values."""
VALUE = "__value__"
"""Key of a parameter that the model's own tensors do not include, such as a learned loss weight."""


def _names(model: nn.Module, optimizer: Optimizer) -> dict[int, str]:
    by_id = {id(p): name for name, p in unwrap(model).named_parameters()}
    for g, group in enumerate(optimizer.param_groups):
        for i, p in enumerate(group["params"]):
            by_id.setdefault(id(p), f"group{g}.{i}")
    return by_id


def _is_stored_with_model(model: nn.Module) -> Callable[[str, torch.Tensor], bool]:
    stored = unwrap(model).state_dict(keep_vars=True)
    ids = {id(tensor) for tensor in stored.values()}
    return lambda name, p: name in stored or id(p) in ids


def optimizer_snapshot(model: nn.Module, optimizer: Optimizer) -> tuple[Tensors, dict[str, Any]]:
    """Return live state tensors named `<parameter>/<key>`, and a tree of everything else.

    The tree has the groups with their settings, values that are not tensors, state of no parameter,
    and the state of an optimizer with its own `state_dict()`.
    """
    names = _names(model, optimizer)
    is_stored = _is_stored_with_model(model)
    is_own = has_own_state_dict(optimizer)
    tensors: Tensors = {}
    groups = []
    for group, class_name in zip(optimizer.param_groups, _kinds(optimizer), strict=True):
        values: dict[str, Any] = {}
        for p in group["params"]:
            name = names[id(p)]
            if not is_stored(name, p):
                tensors[f"{name}/{VALUE}"] = p.detach()
            for key, value in ({} if is_own else optimizer.state.get(p, {})).items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{name}/{key}"] = value.detach()
                else:
                    values[f"{name}/{key}"] = value
        groups.append(
            {
                "optimizer": class_name,
                "settings": {} if is_own else _settings(group),
                "params": [names[id(p)] for p in group["params"]],
                "frozen": [names[id(p)] for p in group["params"] if not p.requires_grad],
                "values": values,
            }
        )
    if is_own:
        return tensors, {"groups": groups, "state_dict": optimizer.state_dict()}
    # The state of a parameter that was removed from its group is not used.
    others = {key: value for key, value in optimizer.state.items() if id(key) not in names}
    return tensors, {"groups": groups, "others": others}


def load_optimizer(
    model: nn.Module,
    optimizer: Optimizer,
    saved: TensorReader,
    prefix: str,
    stored: dict[str, Any],
) -> None:
    """Restore the state that `optimizer_snapshot` returned.

    Groups that were added in training are added. Any other state is removed, such as state from a
    checkpoint that turned out to be damaged while it was read.
    """
    groups = stored["groups"]
    _add_groups(model, optimizer, groups)
    check_groups(optimizer, groups)
    if has_own_state_dict(optimizer) is not ("state_dict" in stored):
        raise TrainingError(
            f"{type(optimizer).__name__} has state_dict() or load_state_dict() of its own now, or"
            " had it when the checkpoint was written, but not both."
        )
    names = _names(model, optimizer)
    keys, values = read_keys(saved, prefix), read_values(groups)
    _check_parameters(optimizer, names, groups, keys.keys() | values.keys())
    # Settings like `fused` belong to this machine and are kept.
    implementations = [
        {key: value for key, value in group.items() if key in IMPLEMENTATION_SETTINGS}
        for group in optimizer.param_groups
    ]
    if "state_dict" in stored:
        optimizer.load_state_dict(stored["state_dict"])
    else:
        optimizer.state.clear()
    with saved.concurrent_reads():
        for group, entry, own in zip(optimizer.param_groups, groups, implementations, strict=True):
            group.update(portable(entry["settings"]) | own)
            for p in group["params"]:
                name, state = names[id(p)], {}
                for key, value in values.get(name, {}).items():
                    state[key] = _to_device(value, p.device)
                for key in keys.get(name, []):
                    if key == VALUE:
                        read_into(saved, f"{prefix}{name}/{key}", p.detach())
                    else:
                        state[key] = _read(saved, f"{prefix}{name}/{key}", p, group)
                if state:
                    optimizer.state[p] = state
    if others := stored.get("others"):
        device = next(p.device for group in optimizer.param_groups for p in group["params"])
        optimizer.state.update(_to_device(others, device))


def read_keys(saved: TensorReader, prefix: str) -> dict[str, list[str]]:
    """Return the keys of the stored state tensors, by parameter."""
    keys: dict[str, list[str]] = {}
    for full in saved.names():
        if full.startswith(prefix):
            name, key = full.removeprefix(prefix).rsplit("/", 1)
            keys.setdefault(name, []).append(key)
    return keys


def read_values(groups: list[Group]) -> dict[str, dict[str, Any]]:
    """Return the stored state that is not tensors, by parameter and key."""
    values: dict[str, dict[str, Any]] = {}
    for full, value in (item for entry in groups for item in entry["values"].items()):
        name, key = full.rsplit("/", 1)
        values.setdefault(name, {})[key] = value
    return values


def _add_groups(model: nn.Module, optimizer: Optimizer, groups: list[Group]) -> None:
    """Add the groups that a hook had added in training, of the model's parameters."""
    if isinstance(optimizer, MuonAdamW):
        return
    taken = {id(p) for group in optimizer.param_groups for p in group["params"]}
    parameters = {n: p for n, p in unwrap(model).named_parameters() if id(p) not in taken}
    for entry in groups[len(optimizer.param_groups) :]:
        if not parameters.keys() >= set(entry["params"]):
            return
        for name in entry["params"]:
            parameters[name].requires_grad_(name not in entry["frozen"])
        params = [parameters.pop(name) for name in entry["params"]]
        optimizer.add_param_group({**portable(entry["settings"]), "params": params})


def _check_parameters(
    optimizer: Optimizer,
    names: dict[int, str],
    groups: list[Group],
    with_state: Set[str],
) -> None:
    stored_names = {name for entry in groups for name in entry["params"]}
    own_names = {names[id(p)] for group in optimizer.param_groups for p in group["params"]}
    missing = own_names - stored_names
    if missing:
        raise TrainingError(
            f"The checkpoint's optimizer has no state for the parameter {min(missing)}."
        )
    left_over = (stored_names | with_state) - own_names
    if left_over:
        raise TrainingError(
            f"The checkpoint has optimizer state for {min(left_over)}, which is not being trained."
        )


IMPLEMENTATION_SETTINGS = frozenset({"fused", "foreach", "capturable", "differentiable"})
"""Settings of how an update is computed, which do not change its result."""


def _settings(group: Group) -> Group:
    """Return a group's settings in an order that does not depend on who has added it."""
    return {key: group[key] for key in sorted(group) if key != "params"}


def portable(settings: Group) -> Group:
    return {key: value for key, value in settings.items() if key not in IMPLEMENTATION_SETTINGS}


def check_groups(optimizer: Optimizer, groups: list[Group]) -> None:
    """Check that the checkpoint's optimizer has the same class and number of groups.

    The state of one class may load into another, but then it computes neither of the two updates.
    """
    current = _kinds(optimizer)
    stored = [entry["optimizer"] for entry in groups]
    if current != stored:
        now, before = (
            f"{'+'.join(dict.fromkeys(names))}, {plural(len(names), 'group')}"
            for names in (current, stored)
        )
        raise TrainingError(f"The optimizer is {now}; the checkpoint was written with {before}.")


def _kinds(optimizer: Optimizer) -> list[str]:
    """Return the class of each group's optimizer."""
    return [type(optimizer).__name__] * len(optimizer.param_groups)


def _read(
    saved: TensorReader, full: str, param: torch.Tensor, group: dict[str, object]
) -> torch.Tensor:
    """Read a state tensor, placed like its parameter. A count is on the CPU, unless fused."""
    shape = saved.shape(full)
    if shape:
        target = zeros_like_shard(param, shape, saved.dtype(full))
    else:
        on_device = group.get("fused") or group.get("capturable")
        target = torch.zeros(
            (), dtype=saved.dtype(full), device=param.device if on_device else torch.device("cpu")
        )
    read_into(saved, full, target)
    return target


def _to_device(value: Any, device: torch.device) -> Any:
    """Move the tensors of a tree to a device. A number stays on the CPU, as in `_read`."""
    if isinstance(value, torch.Tensor):
        return value.to(device) if value.dim() else value
    if isinstance(value, dict):
        return {key: _to_device(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_to_device(item, device) for item in value)
    return value
