"""A model's tensors by name, whatever it is wrapped in."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from launcher.errors import TrainingError
from launcher.run import ranks
from launcher.run.rng import restore_rng, rng_state
from launcher.strategies.base import Saved
from launcher.strategies.sharded import read_into

WRAPPERS = ("DistributedDataParallel", "DataParallel", "AveragedModel", "DeepSpeedEngine")


def unwrap(module: nn.Module) -> nn.Module:
    """The module that the user built, without compile's shell or one of `WRAPPERS`."""
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod  # type: ignore[assignment]
        elif type(module).__name__ in WRAPPERS:
            module = module.module  # type: ignore[assignment]
        else:
            return module


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


def initialise(model: nn.Module, device: torch.device) -> None:
    """Bring a freshly built model to its device and let it draw its weights.

    A module built on the meta device gets memory first; one without `init_weights` keeps what its constructor drew,
    which a meta device cannot give.

    Raises:
        TrainingError: the model is on the meta device and has no `init_weights`.
    """
    on_meta = any(tensor.is_meta for tensor in model.state_dict().values())
    init_weights = getattr(model, "init_weights", None)
    if on_meta and init_weights is None:
        raise TrainingError(f"{type(model).__name__} was built without memory and has no init_weights() to fill it.")
    model.to(device) if not on_meta else materialise(model, device)
    if init_weights is not None:
        init_weights()


def materialise(model: nn.Module, device: torch.device) -> None:
    """Give the tensors of a model built on the meta device memory, values unset. As `to_empty`, but what was one
    parameter under two names stays one."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None or (not tensor.is_meta and tensor.device == device):
                    continue
                if id(tensor) not in made:
                    data = torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.detach().to(device)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(data, tensor.requires_grad) if is_parameter else data
                    made[-id(tensor)] = tensor  # alive, so that no other gets its id
                tensors[name] = made[id(tensor)]


def build(
    build_model: Callable[[], nn.Module], context: AbstractContextManager[Any], device: torch.device
) -> nn.Module:
    """Build a model in `context` and let it draw its weights on `device`.

    They are the same on every rank, at every world size, and whether the context is the meta device or not: all draw
    with rank 0's generators, and `init_weights` begins where the constructor began, whose own draws it overwrites.

    Raises:
        TrainingError: see `initialise`.
    """
    with same_draws():
        return draw(build_model, context, device)


def draw(build_model: Callable[[], nn.Module], context: AbstractContextManager[Any], device: torch.device) -> nn.Module:
    """As `build`, with this rank's own generators."""
    start = rng_state()
    with context:
        model = build_model()
    if hasattr(model, "init_weights"):
        restore_rng(start)
    elif any(tensor.is_meta for tensor in model.state_dict().values()):
        restore_rng(start)
        with device:  # it has no way to fill memory later, so its constructor must draw
            model = build_model()
    initialise(model, device)
    return model


@contextmanager
def same_draws() -> Iterator[None]:
    """Inside, every rank draws rank 0's random numbers. Ranks other than 0 go on afterwards as if nothing had been."""
    own = rng_state()
    restore_rng(ranks.broadcast(own))
    try:
        yield
    finally:
        if ranks.rank() != 0:
            restore_rng(own)
