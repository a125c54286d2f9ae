"""A model's tensors by name, whatever it is wrapped in."""

import sys
from collections.abc import Iterator

import torch
from torch import nn

from launcher.errors import TrainingError
from launcher.strategies.base import Saved
from launcher.strategies.sharded import read_into


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """A module and what it wraps, outermost first: torch.compile's wrapper, DDP, DataParallel, AveragedModel,
    DeepSpeed's engine, and subclasses of them."""
    wrappers: list[type] = [nn.parallel.DistributedDataParallel, nn.DataParallel, torch.optim.swa_utils.AveragedModel]
    if deepspeed := sys.modules.get("deepspeed"):
        wrappers.append(deepspeed.DeepSpeedEngine)
    while True:
        yield module
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod  # type: ignore[assignment]
        elif isinstance(module, tuple(wrappers)):
            module = module.module  # type: ignore[assignment]
        else:
            return


def unwrap(module: nn.Module) -> nn.Module:
    """The module that the user built."""
    *_, module = layers(module)
    return module


def needs_backward(module: nn.Module) -> bool:
    """Whether each forward pass must be followed by a backward pass: under DDP and `fully_shard`."""
    return any(
        isinstance(layer, nn.parallel.DistributedDataParallel) or hasattr(layer, "set_requires_gradient_sync")
        for layer in layers(module)
    )


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name. Tied ones appear once, under their first name."""
    seen: set[int] = set()
    tensors = {}
    # keep_vars: the parameters themselves, so that one tied to another is known by its identity
    for name, tensor in unwrap(model).state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def load_model_tensors(model: nn.Module, saved: Saved, prefix: str, strict: bool) -> list[str]:
    """Copy stored tensors into the model's own, in place.

    Returns:
        A sentence for each name that is missing, left over or of another shape.
    Raises:
        TrainingError: `strict`, and there is such a name.
    """
    own = model_tensors(model)
    problems = misfits(model, {name: tuple(tensor.shape) for name, tensor in own.items()}, saved, prefix, strict)
    bad = {problem.split(":", 1)[0] for problem in problems}
    for name, tensor in own.items():
        if name not in bad:
            read_into(saved, prefix + name, tensor)
    return problems


def misfits(model: nn.Module, own: dict[str, tuple[int, ...]], saved: Saved, prefix: str, strict: bool) -> list[str]:
    """A sentence, which begins with the name, for each stored tensor that does not fit the model's `own` shapes.

    Raises:
        TrainingError: `strict`, and there is one.
    """
    stored = {name.removeprefix(prefix) for name in saved.names() if name.startswith(prefix)}
    aliases = set(unwrap(model).state_dict().keys()) - set(own)  # tied names that others may have stored as well
    problems = [f"{name}: the model has it, the checkpoint has not" for name in own if name not in stored]
    problems += [f"{name}: the checkpoint has it, the model has not" for name in sorted(stored - set(own) - aliases)]
    for name, shape in own.items():
        if name in stored and (there := saved.shape(prefix + name)) != shape:
            problems.append(f"{name}: shape {there} in the checkpoint, {shape} in the model")
    if strict and problems:
        raise TrainingError("The weights do not fit the model: " + "; ".join(problems[:10]) + ".")
    return problems
