"""An optimizer's state by parameter name.

It fits other strategies, wrappers and orders of groups.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from launcher.errors import TrainingError
from launcher.optim.parts import OptimizerParts
from launcher.strategies.base import TensorReader
from launcher.strategies.sharded import read_into, zeros_like_shard
from launcher.strategies.weights import unwrap

VALUE = "__value__"
"""Key of a parameter that the model's own tensors do not include, such as a learned loss weight."""


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    by_id = {id(p): name for name, p in unwrap(model).named_parameters()}
    for g, group in enumerate(optimizer.param_groups):
        for i, p in enumerate(group["params"]):
            by_id.setdefault(id(p), f"group{g}.{i}")
    return by_id


def _is_stored_with_model(model: nn.Module) -> Callable[[str, torch.Tensor], bool]:
    stored = unwrap(model).state_dict(keep_vars=True)
    ids = {id(tensor) for tensor in stored.values()}
    return lambda name, p: name in stored or id(p) in ids


def optimizer_snapshot(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Return live state tensors named `<parameter>/<key>`, and the groups.

    The groups have their settings, and state values that are not tensors.
    """
    names, is_stored = _names(model, optimizer), _is_stored_with_model(model)
    tensors: dict[str, torch.Tensor] = {}
    groups = []
    for group, kind in zip(optimizer.param_groups, _kinds(optimizer), strict=True):
        settings = {key: value for key, value in group.items() if key != "params"}
        values: dict[str, Any] = {}
        for p in group["params"]:
            if not is_stored(names[id(p)], p):
                tensors[f"{names[id(p)]}/{VALUE}"] = p.detach()
            for key, value in optimizer.state.get(p, {}).items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{names[id(p)]}/{key}"] = value.detach()
                else:
                    values[f"{names[id(p)]}/{key}"] = value
        params = [names[id(p)] for p in group["params"]]
        groups.append(
            {
                "optimizer": kind,
                "settings": settings,
                "params": params,
                "values": values,
            }
        )
    return tensors, groups


def load_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    saved: TensorReader,
    prefix: str,
    groups: list[dict[str, Any]],
) -> None:
    """Restore the state that `optimizer_snapshot` returned.

    Any other state is removed, such as state from a checkpoint that turned out to be damaged while
    it was read.

    Raises:
        TrainingError: it is another optimizer than the checkpoint's, or has other parameters or
            groups.
    """
    check_groups(optimizer, groups)
    names = _names(model, optimizer)
    keys: dict[str, list[str]] = {}
    for full in saved.names():
        if full.startswith(prefix):
            name, key = full.removeprefix(prefix).rsplit("/", 1)
            keys.setdefault(name, []).append(key)
    values: dict[str, dict[str, Any]] = {}
    for entry in groups:
        for full, value in entry["values"].items():
            name, key = full.rsplit("/", 1)
            values.setdefault(name, {})[key] = value
    stored_names = {name for entry in groups for name in entry["params"]}
    own_names = {names[id(p)] for group in optimizer.param_groups for p in group["params"]}
    if missing := own_names - stored_names:
        raise TrainingError(
            f"The checkpoint's optimizer has no state for the parameter {min(missing)}."
        )
    if left_over := (stored_names | keys.keys() | values.keys()) - own_names:
        raise TrainingError(
            f"The checkpoint has optimizer state for {min(left_over)}, which is not being trained."
        )
    with saved.concurrent_reads():
        for group, entry in zip(optimizer.param_groups, groups, strict=True):
            # Settings like `fused` belong to this machine and are kept.
            group.update(
                {k: v for k, v in entry["settings"].items() if k not in IMPLEMENTATION_SETTINGS}
            )
            for p in group["params"]:
                name = names[id(p)]
                # State that the checkpoint does not have must go.
                present = optimizer.state.pop(p, {})
                state = {
                    key: _to_device(value, p.device) for key, value in values.get(name, {}).items()
                }
                for key in keys.get(name, []):
                    if key == VALUE:
                        read_into(saved, f"{prefix}{name}/{key}", p.detach())
                    else:
                        state[key] = _read(
                            saved, f"{prefix}{name}/{key}", p, group, present.get(key)
                        )
                if state:
                    optimizer.state[p] = state


IMPLEMENTATION_SETTINGS = frozenset({"fused", "foreach", "capturable", "differentiable"})
"""Settings of how an update is computed, which do not change its result."""


def check_groups(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """Check that the checkpoint's optimizer has the same class and number of groups.

    The state of one class may load into another, but then it computes neither of the two updates.

    Raises:
        TrainingError: the checkpoint was written with an optimizer of another class, or another
            number of groups.
    """
    current = _kinds(optimizer)
    stored = [entry["optimizer"] for entry in groups]
    if current != stored:
        now, before = (
            f"{'+'.join(dict.fromkeys(names))}, {_groups(len(names))}"
            for names in (current, stored)
        )
        raise TrainingError(f"The optimizer is {now}; the checkpoint was written with {before}.")


def _kinds(optimizer: torch.optim.Optimizer) -> list[str]:
    """The class of each group's optimizer, with the part that it is of several."""
    if isinstance(optimizer, OptimizerParts):
        return optimizer.group_kinds
    return [type(optimizer).__name__] * len(optimizer.param_groups)


def _groups(count: int) -> str:
    return "1 group" if count == 1 else f"{count} groups"


def _read(
    saved: TensorReader,
    full: str,
    param: torch.Tensor,
    group: dict[str, object],
    present: object = None,
) -> torch.Tensor:
    """Read a state tensor.

    A moment is sharded and placed like its parameter. A step count (0-d) is on the CPU unless the
    kernel reads it. The tensor `present` is reused if it fits, since allocating costs more than
    reading.
    """
    shape = saved.shape(full)
    if (
        isinstance(present, torch.Tensor)
        and shape
        and present.shape == shape
        and present.dtype == saved.dtype(full)
    ):
        target = present
    elif shape:
        target = zeros_like_shard(param, shape, saved.dtype(full))
    else:
        on_device = group.get("fused") or group.get("capturable")
        target = torch.zeros(
            (), dtype=saved.dtype(full), device=param.device if on_device else torch.device("cpu")
        )
    read_into(saved, full, target)
    return target


def _to_device(value: object, device: torch.device) -> object:
    """Move a tensor, or a list of them, to its parameter's device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [_to_device(item, device) for item in value] if isinstance(value, list) else value
