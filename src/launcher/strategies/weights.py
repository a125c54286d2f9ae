"""A model's tensors by name, without its wrappers."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from launcher.errors import TrainingError
from launcher.strategies.base import TensorReader
from launcher.strategies.sharded import local, read_into

MODEL = "model/"
"""Prefix of a model's tensors in a checkpoint."""
EXTRA = "_extra_state"
TIED = "tied"
"""Key of `tied_names` in a checkpoint's state."""
NO_EXTRA_STATE = nn.Module.get_extra_state


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """List a module and the modules it wraps, outermost first.

    Wrappers are torch.compile's, DDP, DataParallel, AveragedModel, DeepSpeed's engine, and
    subclasses of them.
    """
    wrappers: list[type] = [
        nn.parallel.DistributedDataParallel,
        nn.DataParallel,
        torch.optim.swa_utils.AveragedModel,
    ]
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
    """Return the module that the user built."""
    *_, module = layers(module)
    return module


def needs_backward(module: nn.Module) -> bool:
    """Return whether a backward pass must follow each forward pass: under DDP, `fully_shard`."""
    return any(
        isinstance(layer, nn.parallel.DistributedDataParallel)
        or hasattr(layer, "set_requires_gradient_sync")
        for layer in layers(module)
    )


@dataclass
class ModelState:
    """A model's part of a checkpoint."""

    tensors: dict[str, torch.Tensor]
    """Parameters and persistent buffers by name. Tied ones appear once, under their first name."""
    copies: set[str]
    """Names of tensors that `state_dict()` copied. Filling them does not change the model."""


def model_state(model: nn.Module) -> ModelState:
    module = unwrap(model)
    # With keep_vars it has the parameters themselves, so that tied ones are recognised by identity.
    state = module.state_dict(keep_vars=True)
    tensors = [*module.parameters(), *module.buffers()]
    ids, memory = {id(tensor) for tensor in tensors}, {_address(tensor) for tensor in tensors}
    seen: set[int] = set()
    result = ModelState({}, set())
    for name, tensor in state.items():
        if name.endswith(EXTRA) or not isinstance(tensor, torch.Tensor) or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        result.tensors[name] = tensor.detach()
        if tensor.numel() and id(tensor) not in ids and _address(tensor) not in memory:
            result.copies.add(name)
    return result


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return the further names of tied tensors, each with the tensor's name in `model_state`."""
    first: dict[int, str] = {}
    tied = {}
    for name, tensor in unwrap(model).state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor) and first.setdefault(id(tensor), name) != name:
            tied[name] = first[id(tensor)]
    return tied


class Tied:
    """Stored weights in which a tied tensor has all of its names.

    A file may have it under any of them.

    Args:
        tied: see `tied_names`.
        prefix: prefix of the stored names.
    """

    def __init__(self, saved: TensorReader, tied: Mapping[str, str], prefix: str = ""):
        self.saved, self.path, self.meta = saved, saved.path, saved.meta
        stored = set(saved.names())
        others = ((prefix + name, prefix + other) for other, name in tied.items())
        self._names = {
            name: other
            for name, other in reversed([*others])
            if name not in stored and other in stored
        }

    def names(self) -> list[str]:
        return [*self.saved.names(), *self._names]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.saved.shape(self._names.get(name, name))

    def dtype(self, name: str) -> torch.dtype:
        return self.saved.dtype(self._names.get(name, name))

    def concurrent_reads(self) -> AbstractContextManager[None]:
        return self.saved.concurrent_reads()

    def read_into(
        self, name: str, target: torch.Tensor, offset: tuple[int, ...] | None = None
    ) -> None:
        self.saved.read_into(self._names.get(name, name), target, offset)


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return model_state(model).tensors


def _address(tensor: torch.Tensor) -> int:
    # A sparse tensor has no storage of its own.
    return (
        local(tensor).untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)
    )


def load_model_tensors(
    model: nn.Module, saved: TensorReader, prefix: str, strict: bool
) -> list[str]:
    """Copy stored tensors into the model's own, in place.

    If `state_dict()` returns copies, `load_state_dict()` is used.

    Returns:
        A message for each name that is missing, left over or of another shape.
    Raises:
        TrainingError: `strict`, and there is such a name, or `load_state_dict()` ignored a tensor.
    """
    state = model_state(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.tensors.items()}
    problems = misfits(model, shapes, saved, prefix, strict)
    bad = {problem.split(":", 1)[0] for problem in problems}
    copies: dict[str, torch.Tensor] = {}
    with saved.concurrent_reads():
        for name, tensor in state.tensors.items():
            if name not in bad:
                target = (
                    copies.setdefault(name, torch.empty_like(tensor))
                    if name in state.copies
                    else tensor
                )
                read_into(saved, prefix + name, target)
    if copies:
        _load_copies(unwrap(model), copies)
    return problems


def _load_copies(module: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Load by `load_state_dict()`, and check the result.

    Raises:
        TrainingError: the model has other values afterwards.
    """
    module.load_state_dict({**module.state_dict(), **tensors}, strict=False)
    after = module.state_dict()
    for name, tensor in tensors.items():
        if not torch.equal(_bytes(after[name]), _bytes(tensor)):
            raise TrainingError(
                f"{name}: the model's state_dict() returns a copy, and its load_state_dict() does"
                " not take the checkpoint's values: this model cannot be resumed."
            )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return local(tensor).contiguous().reshape(-1).view(torch.uint8)


def extra_state(model: nn.Module) -> dict[str, object]:
    """Return each module's `get_extra_state()`, by the module's name."""
    modules = unwrap(model).named_modules()
    return {
        name: m.get_extra_state()
        for name, m in modules
        if type(m).get_extra_state is not NO_EXTRA_STATE
    }


def load_extra_state(model: nn.Module, stored: dict[str, object], strict: bool = True) -> list[str]:
    """Pass stored values to `set_extra_state()`.

    Returns:
        A message for each module that is missing or left over.
    Raises:
        TrainingError: `strict`, and there is one.
    """
    names = extra_state(model).keys()
    problems = [
        f"{_extra(name)}: the checkpoint does not have it" for name in names if name not in stored
    ]
    problems += [
        f"{_extra(name)}: the model does not have it" for name in stored if name not in names
    ]
    if strict and problems:
        raise TrainingError("The weights do not fit the model: " + "; ".join(problems) + ".")
    for name in names & stored.keys():
        unwrap(model).get_submodule(name).set_extra_state(stored[name])
    return problems


def load_weights(
    model: nn.Module,
    saved: TensorReader,
    strict: bool = True,
    load_tensors: Callable[[TensorReader, str, bool], list[str]] | None = None,
) -> list[str]:
    """Load from a checkpoint, or from a file that has only weights.

    Args:
        model: the model whose tensors are overwritten.
        saved: the stored tensors.
        strict: raise if a tensor does not fit.
        load_tensors: function called with `saved`, the prefix of the names and `strict`. Default
            None: `load_model_tensors`.
    Returns:
        A message for each tensor that is missing, left over or of another shape.
    Raises:
        TrainingError: `strict`, and there is one.
    """
    prefix = MODEL if any(name.startswith(MODEL) for name in saved.names()) else ""
    saved = Tied(saved, tied_names(model), prefix)
    problems = (load_tensors or partial(load_model_tensors, model))(saved, prefix, strict)
    # Only a checkpoint has it, other files of weights do not.
    if EXTRA in saved.meta:
        problems += load_extra_state(model, saved.meta[EXTRA], strict)
    return problems


def _extra(name: str) -> str:
    return f"{name}.{EXTRA}" if name else EXTRA


def misfits(
    model: nn.Module,
    shapes: dict[str, tuple[int, ...]],
    saved: TensorReader,
    prefix: str,
    strict: bool,
) -> list[str]:
    """Return a message for each stored tensor that does not fit the model's `shapes`.

    A message begins with the tensor's name.

    Raises:
        TrainingError: `strict`, and there is one.
    """
    stored = {name.removeprefix(prefix) for name in saved.names() if name.startswith(prefix)}
    # These are further names of tied tensors.
    aliases = set(unwrap(model).state_dict().keys()) - set(shapes)
    problems = [f"{name}: the checkpoint does not have it" for name in shapes if name not in stored]
    problems += [
        f"{name}: the model does not have it" for name in sorted(stored - set(shapes) - aliases)
    ]
    for name, shape in shapes.items():
        if name in stored and (stored_shape := saved.shape(prefix + name)) != shape:
            problems.append(f"{name}: shape {stored_shape} in the checkpoint, {shape} in the model")
    if strict and problems:
        raise TrainingError("The weights do not fit the model: " + "; ".join(problems[:10]) + ".")
    return problems
