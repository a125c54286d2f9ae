"""An optimizer's state by parameter name, so that it fits another strategy, wrapping or order of groups."""

from typing import Any

import torch
from torch import nn

from launcher.errors import TrainingError
from launcher.strategies.base import Saved
from launcher.strategies.sharded import like, read_into
from launcher.strategies.weights import unwrap


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    by_id = {id(p): name for name, p in unwrap(model).named_parameters()}
    for g, group in enumerate(optimizer.param_groups):
        for i, p in enumerate(group["params"]):
            by_id.setdefault(id(p), f"group{g}.{i}")  # not the model's: a learnt loss weight, say
    return by_id


def optimizer_snapshot(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Live state tensors named `<parameter>/<key>`, and the groups with their settings and other state values."""
    names = _names(model, optimizer)
    tensors: dict[str, torch.Tensor] = {}
    groups = []
    for group in optimizer.param_groups:
        settings = {key: value for key, value in group.items() if key != "params"}
        values: dict[str, Any] = {}
        for p in group["params"]:
            for key, value in optimizer.state.get(p, {}).items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{names[id(p)]}/{key}"] = value.detach()
                else:
                    values[f"{names[id(p)]}/{key}"] = value
        groups.append({"settings": settings, "params": [names[id(p)] for p in group["params"]], "values": values})
    return tensors, groups


def load_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    saved: Saved,
    prefix: str,
    groups: list[dict[str, Any]],
) -> None:
    """Put back what `optimizer_snapshot` gave, and nothing else: state of another checkpoint, which turned out to be
    broken while it was read, is gone.

    Raises:
        TrainingError: the optimizer has a parameter or a number of groups that the checkpoint has not.
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
    known = {name for entry in groups for name in entry["params"]}
    for group, entry in zip(optimizer.param_groups, groups, strict=True):
        # `lr` may have been made a tensor, `fused` belongs to this machine: settings that say how, not what, stay
        group.update({k: v for k, v in entry["settings"].items() if k not in HOW})
        for p in group["params"]:
            name = names[id(p)]
            if name not in known:
                raise TrainingError(f"The checkpoint's optimizer has no state for the parameter {name}.")
            present = optimizer.state.pop(p, {})  # what the checkpoint has not must not stay
            state = dict(values.get(name, {}))
            for key in keys.get(name, []):
                state[key] = _read(saved, f"{prefix}{name}/{key}", p, group, present.get(key))
            if state:
                optimizer.state[p] = state


HOW = frozenset({"fused", "foreach", "capturable", "differentiable"})
"""Settings that say how an update is computed, not what it is."""


def check_groups(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """
    Raises:
        TrainingError: the checkpoint has another number of them.
    """
    if len(groups) != len(optimizer.param_groups):
        raise TrainingError(
            f"The optimizer has {len(optimizer.param_groups)} parameter groups, the checkpoint {len(groups)}: "
            "it was written with another optimizer. run.init_from takes its weights alone."
        )


def _read(saved: Saved, full: str, param: torch.Tensor, group: dict[str, Any], present: Any = None) -> torch.Tensor:
    """A moment lies as its parameter lies; a step count (0-d) lies on the CPU unless the kernel reads it itself. The
    one at `present` is filled if it is alike: new memory costs more than reading into it."""
    shape = saved.shape(full)
    if isinstance(present, torch.Tensor) and shape and present.shape == shape and present.dtype == saved.dtype(full):
        target = present
    elif shape:
        target = like(param, shape, saved.dtype(full))
    else:
        on_device = group.get("fused") or group.get("capturable")
        target = torch.zeros((), dtype=saved.dtype(full), device=param.device if on_device else torch.device("cpu"))
    read_into(saved, full, target)
    return target
