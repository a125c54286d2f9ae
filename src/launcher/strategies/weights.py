"""A model's tensors by name, without its wrappers."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from launcher.errors import TrainingError
from launcher.strategies.base import Shape, TensorReader, Tensors
from launcher.strategies.sharded import bits, local, read_into

logger = logging.getLogger(__name__)

MODEL = "model/"
"""Prefix of a model's tensors in a checkpoint."""
EXTRA = "_extra_state"
TIED = "tied"
"""Key of `tied_names` in a checkpoint's state."""


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """List a module and the modules that it wraps, outermost first, for any wrapper's subclass."""
    wrappers: list[type] = [
        nn.parallel.DistributedDataParallel,
        nn.DataParallel,
        torch.optim.swa_utils.AveragedModel,
    ]
    deepspeed = sys.modules.get("deepspeed")
    if deepspeed:
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
    *_, module = layers(module)
    return module


def needs_backward(module: nn.Module) -> bool:
    """Return whether a backward pass must follow each forward pass: under DDP, `fully_shard`."""
    return any(
        isinstance(layer, nn.parallel.DistributedDataParallel) or is_fully_sharded(layer)
        for layer in layers(module)
    )


def is_fully_sharded(module: nn.Module) -> bool:
    """Return whether `fully_shard` has this module. Others may have methods of the same names."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def exchanges_gradients(module: object) -> bool:
    """Return whether a module is torch's DDP or its first FSDP, which have `no_sync()`."""
    wrappers: list[type] = [nn.parallel.DistributedDataParallel]
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp:
        wrappers.append(fsdp.FullyShardedDataParallel)
    return isinstance(module, tuple(wrappers))


@dataclass
class ModelState:
    """A model's part of a checkpoint."""

    tensors: Tensors
    """Parameters and persistent buffers by name. Tied ones appear once, under their first name."""
    copies: set[str]
    """Names of tensors that `state_dict()` copied. Filling them does not change the model."""


def model_state(model: nn.Module) -> ModelState:
    module = unwrap(model)
    # With keep_vars it has the parameters themselves, so that tied ones are recognised by identity.
    state = module.state_dict(keep_vars=True)
    tensors = [*module.parameters(), *module.buffers()]
    ids = {id(tensor) for tensor in tensors}
    memory = {_address(tensor) for tensor in tensors}
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


def names_of_tied(model: nn.Module) -> dict[str, str]:
    """Return the further names of tied tensors, each with the tensor's name in `model_state`."""
    first: dict[int, str] = {}
    tied = {}
    for name, tensor in unwrap(model).state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor) and first.setdefault(id(tensor), name) != name:
            tied[name] = first[id(tensor)]
    return tied


def _with_tied_names(saved: TensorReader, tied: Mapping[str, str], prefix: str) -> TensorReader:
    """Find a tied tensor by any of its names (see `names_of_tied`)."""
    names = {name: name for name in saved.names()}
    stored = frozenset(names)
    for other, name in tied.items():
        if prefix + other in stored:
            names.setdefault(prefix + name, prefix + other)
    return saved.under_names(names)


def model_tensors(model: nn.Module) -> Tensors:
    return model_state(model).tensors


def _address(tensor: torch.Tensor) -> int:
    # A sparse tensor has no storage of its own.
    if tensor.layout is torch.strided:
        return local(tensor).untyped_storage().data_ptr()
    return id(tensor)


def load_model_tensors(
    model: nn.Module, saved: TensorReader, prefix: str, strict: bool
) -> list[str]:
    """Restore tensors and extra state as `load_state_dict()` does; return a message per misfit.

    A tensor of the model's own is read in place first. Any other is only passed to it, such as one
    of another shape, or one that `state_dict()` copies.
    """
    module = unwrap(model)
    own = model_state(model)
    state = module.state_dict()
    extra = saved.meta.get(EXTRA, {})
    stored = {name.removeprefix(prefix) for name in saved.names() if name.startswith(prefix)}
    device = next((tensor.device for tensor in own.tensors.values()), torch.device("cpu"))
    passed: Tensors = {}
    with saved.concurrent_reads():
        for name in stored - (state.keys() - own.tensors.keys()):
            shape = saved.shape(prefix + name)
            tensor = own.tensors.get(name)
            if tensor is not None and loses_a_part(saved, prefix + name, tensor):
                continue
            if tensor is None or tuple(tensor.shape) != shape:
                dtype = saved.dtype(prefix + name)
                tensor = torch.empty(shape, dtype=dtype, device=device)
                passed[name] = tensor
            elif name in own.copies:
                tensor = torch.empty_like(tensor)
                passed[name] = tensor
            read_into(saved, prefix + name, tensor)
    # The model's own code may look for what the checkpoint does not have.
    for name in state.keys() - stored - extra.keys() - names_of_tied(model).keys():
        del state[name]
    state.update({**passed, **extra})
    failure = _load(module, state)
    problems = misfits(model, tensor_shapes(model), saved, prefix, strict)
    if failure is not None and not problems:
        raise TrainingError(f"The weights do not fit the model: {failure}") from failure
    bad = {problem.split(":", 1)[0] for problem in problems}
    _check_taken(model, {name: passed[name] for name in passed.keys() - bad})
    return problems


def _load(module: nn.Module, state: Mapping[str, Any]) -> Exception | None:
    """Load a state dict, and return the error that the model's own code raises."""
    try:
        module.load_state_dict(state, strict=False)
    except (RuntimeError, KeyError) as error:
        return error
    return None


def loses_a_part(saved: TensorReader, name: str, target: torch.Tensor) -> bool:
    """Return whether a stored tensor is complex, and the tensor to fill is not."""
    return saved.dtype(name).is_complex and not target.is_complex()


def _check_taken(model: nn.Module, passed: Tensors) -> None:
    tensors = model_tensors(model)
    for name, tensor in passed.items():
        taken = tensors[name]
        if not torch.equal(bits(taken), bits(tensor.to(taken.dtype))):
            raise TrainingError(
                f"{name}: the model's load_state_dict() does not take the checkpoint's values: this"
                " model cannot be resumed."
            )


def tensor_shapes(model: nn.Module) -> dict[str, Shape]:
    return {name: tuple(tensor.shape) for name, tensor in model_tensors(model).items()}


def find_lost_tensors(model: nn.Module, built: Mapping[str, Shape]) -> list[str]:
    """Return the names of tensors that a resume would not restore.

    They have appeared, vanished or changed their shape since `built`, and their module's
    `load_state_dict()` does not follow.
    """
    module = unwrap(model)
    shapes = tensor_shapes(model)
    changed = {name for name in shapes.keys() | built.keys() if shapes.get(name) != built.get(name)}
    lost = []
    for path in {name.rpartition(".")[0] for name in changed}:
        names = [name for name in changed if name.rpartition(".")[0] == path]
        try:
            owner = module.get_submodule(path)
            restored = _restore(owner, {name.rpartition(".")[2]: built.get(name) for name in names})
        # A module may fail in any way when it is copied, or in its own code.
        except Exception:
            logger.debug("%s cannot be restored in a copy", path, exc_info=True)
            restored = {}
        lost += [n for n in names if restored.get(n.rpartition(".")[2]) != shapes.get(n)]
    return sorted(lost)


def _restore(owner: nn.Module, built: Mapping[str, Shape | None]) -> dict[str, Shape]:
    """Load a module's state into the module as it was built; return the resulting shapes."""
    tensors = [*owner.parameters(), *owner.buffers()]
    # A copy of the values is not needed.
    memo: dict[int, Any] = {id(tensor): tensor.detach().to("meta") for tensor in tensors}
    for p in owner.parameters():
        memo[id(p)] = nn.Parameter(memo[id(p)], requires_grad=False)
    trial = deepcopy(owner, memo)
    for name, shape in built.items():
        setattr(trial, name, None if shape is None else torch.zeros(shape))
    state = owner.state_dict()
    for name in model_tensors(owner).keys() - built.keys():
        state[name] = state[name].to("meta")
    trial.load_state_dict(state, strict=False)
    return tensor_shapes(trial)


def extra_state(model: nn.Module) -> dict[str, object]:
    """Return the entries of `state_dict()` that are not tensors, or `get_extra_state()`."""
    return {
        name: value
        for name, value in unwrap(model).state_dict().items()
        if name.endswith(EXTRA) or not isinstance(value, torch.Tensor)
    }


def model_meta(model: nn.Module) -> dict[str, object]:
    """Return what a checkpoint stores of a model next to its tensors."""
    return {EXTRA: extra_state(model), TIED: names_of_tied(model)}


def extra_misfits(model: nn.Module, stored: Mapping[str, object], strict: bool = True) -> list[str]:
    """Return a message for each entry of `extra_state` that is missing or left over."""
    names = extra_state(model).keys()
    problems = [f"{name}: the checkpoint does not have it" for name in names - stored.keys()]
    problems += [f"{name}: the model does not have it" for name in stored.keys() - names]
    if strict:
        reject_misfits(problems)
    return problems


def reject_misfits(problems: Sequence[str]) -> None:
    if problems:
        raise TrainingError("The weights do not fit the model: " + "; ".join(problems[:10]) + ".")


def load_weights(
    model: nn.Module,
    saved: TensorReader,
    strict: bool = True,
    load_tensors: Callable[[TensorReader, str, bool], list[str]] | None = None,
) -> list[str]:
    """Load a checkpoint, or a file that has only weights; return a message per misfit.

    `load_tensors` is called with `saved`, the prefix of the names and `strict`.
    """
    prefix = MODEL if any(name.startswith(MODEL) for name in saved.names()) else ""
    saved = _with_tied_names(saved, names_of_tied(model), prefix)
    problems = (load_tensors or partial(load_model_tensors, model))(saved, prefix, strict)
    # Extra state is in a checkpoint only, not in other files of weights.
    if EXTRA in saved.meta:
        problems += extra_misfits(model, saved.meta[EXTRA], strict)
    return problems


def misfits(
    model: nn.Module,
    shapes: dict[str, Shape],
    saved: TensorReader,
    prefix: str,
    strict: bool,
) -> list[str]:
    """Return a message, beginning with the name, for each stored tensor that does not fit."""
    stored = {name.removeprefix(prefix) for name in saved.names() if name.startswith(prefix)}
    # Tied tensors have further names.
    aliases = set(unwrap(model).state_dict().keys()) - set(shapes)
    problems = [f"{name}: the checkpoint does not have it" for name in shapes if name not in stored]
    problems += [
        f"{name}: the model does not have it" for name in sorted(stored - set(shapes) - aliases)
    ]
    tensors = model_tensors(model)
    problems += [
        f"{name}: complex in the checkpoint, {tensors[name].dtype} in the model"
        for name in sorted(stored & tensors.keys())
        if loses_a_part(saved, prefix + name, tensors[name])
    ]
    for name, shape in shapes.items():
        if name in stored and (stored_shape := saved.shape(prefix + name)) != shape:
            problems.append(f"{name}: shape {stored_shape} in the checkpoint, {shape} in the model")
    if strict:
        reject_misfits(problems)
    return problems
