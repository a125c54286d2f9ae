"""A model's tensors by name, whatever it is wrapped in."""

import torch
from torch import nn

from launcher.errors import TrainingError
from launcher.strategies.base import Saved


def unwrap(module: nn.Module) -> nn.Module:
    """The module that the user built, without compile's, DDP's, DataParallel's or AveragedModel's shell."""
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod  # type: ignore[assignment]
        elif type(module).__name__ in ("DistributedDataParallel", "DataParallel", "AveragedModel"):
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
    stored = {name.removeprefix(prefix) for name in saved.names() if name.startswith(prefix)}
    aliases = set(unwrap(model).state_dict().keys()) - set(own)  # tied names that others may have stored as well
    problems = [f"{name}: the model has it, the checkpoint has not" for name in own if name not in stored]
    problems += [f"{name}: the checkpoint has it, the model has not" for name in sorted(stored - set(own) - aliases)]
    for name, tensor in own.items():
        if name not in stored:
            continue
        if (shape := saved.shape(prefix + name)) != tuple(tensor.shape):
            problems.append(f"{name}: shape {shape} in the checkpoint, {tuple(tensor.shape)} in the model")
    if strict and problems:
        raise TrainingError("The weights do not fit the model: " + "; ".join(problems[:10]) + ".")
    bad = {problem.split(":", 1)[0] for problem in problems}
    for name, tensor in own.items():
        if name not in bad:
            saved.read_into(prefix + name, tensor)
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
    model.to_empty(device=device) if on_meta else model.to(device)
    if init_weights is not None:
        init_weights()
