"""A model's parameters by kind, in the groups that an optimizer gets."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from launcher.errors import ConfigError
from launcher.models.declared import declared_units
from launcher.types import ParameterKind

NO_DECAY: tuple[ParameterKind, ...] = ("norms", "biases")


def decay_groups(
    model: nn.Module,
    weight_decay: float,
    no_decay: Iterable[str] | None = None,
    leave_out: set[int] | frozenset[int] = frozenset(),
) -> list[dict[str, object]]:
    """Return the trainable parameters in the groups "decay" and "no_decay".

    `no_decay` are the kinds of the second group, by default norms and biases; parameters whose
    `id` is in `leave_out` are in neither.
    """
    kinds = NO_DECAY if no_decay is None else tuple(no_decay)
    members: dict[str, list[Tensor]] = defaultdict(list)
    trainable = False
    for parameter, role in _kinds(model):
        trainable = True
        if id(parameter) not in leave_out:
            members["no_decay" if role in kinds else "decay"].append(parameter)
    if not trainable:
        raise ConfigError(
            "model: it has no trainable parameters; every one is frozen, or there are none."
        )
    decays = {"decay": weight_decay, "no_decay": 0.0}
    return [
        {"name": name, "params": members[name], "weight_decay": decay}
        for name, decay in decays.items()
        if members[name]
    ]


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """Return the trainable matrices between a model's first and last layer.

    They are the matrices of the model's declared `shard_units()`, else all but embeddings. The
    last linear layer is left out, unless it is within a block.
    """
    units = declared_units(model)
    linears = [part for part in model.modules() if isinstance(part, nn.Linear)]
    last = linears[-1:] if not units or linears[-1:] == [_last_layer(units[-1])] else []
    outer = {id(p) for part in last for p in part.parameters()}
    return [
        parameter
        for root in units or [model]
        for parameter, role in _kinds(root)
        if parameter.ndim == 2 and role != "embeddings" and id(parameter) not in outer
    ]


def _last_layer(unit: nn.Module) -> nn.Module:
    """Return the last layer with parameters of a plain sequence; a block stays as it is."""
    while isinstance(unit, nn.Sequential):
        members = [member for member in unit if any(True for _ in member.parameters())]
        if not members:
            break
        unit = members[-1]
    return unit


def _kinds(model: nn.Module) -> Iterator[tuple[Tensor, ParameterKind | None]]:
    """Yield each trainable parameter once, with its kind by the module that owns it."""
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter, _kind(module, name)


def _kind(module: nn.Module, name: str) -> ParameterKind | None:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embeddings"
    # Norms are found by name, which includes LlamaRMSNorm, LayerNorm, BatchNorm2d and a user's own.
    class_name = type(module).__name__.lower()
    if "norm" in class_name:
        return "norms"
    return "biases" if name == "bias" or name.endswith("_bias") else None
