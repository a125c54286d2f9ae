"""Check the output of `forward`, with messages for users."""

from collections.abc import Collection, Iterator, Mapping
from numbers import Number

import numpy as np
import torch
from torch import nn

from launcher.config.messages import describe_type
from launcher.errors import ConfigError

OUTPUTS = ("logits", "targets")
"""Records of an evaluation that its metrics get without averaging."""
LOGGED = frozenset(
    {
        *("loss", "grad_norm", "lr", "step_time", "data_time", "max_memory"),
        "non_finite_grad_retry_count",
    }
)
"""The names that the trainer logs itself."""


def check_output(output: object, name: str, needs_graph: bool = True) -> None:
    """Check a loss and its records, without reading the device.

    Args:
        output: the output of the method.
        name: the method, for messages.
        needs_graph: whether a loss of training has a graph, for the backward pass.
    """
    is_sequence = isinstance(output, tuple | list)
    parts = list(output) if isinstance(output, tuple | list) else []
    if len(parts) != 2 or not isinstance(parts[1], Mapping):
        names = ", ".join(type(part).__name__ for part in parts)
        returned = f"({names})" if is_sequence else describe_type(output)
        raise ConfigError(
            f"{name} should return (loss, records) with a dict of records; it returned {returned}."
        )
    loss, records = parts
    if loss is not None and (issue := _loss_fault(loss, needs_graph)):
        raise ConfigError(f"{name} should return a loss that is {issue}.")
    for record, value in _leaves(records):
        issue = name_issue(record)
        if issue:
            raise ConfigError(f"{name}: the record '{record}' {issue}.")
        if isinstance(value, torch.Tensor | np.ndarray):
            is_number = not value.ndim
            issue = f"has the shape {tuple(value.shape)}; use its mean"
        else:
            is_number = value is None or isinstance(value, Number | np.generic)
            issue = f"is {describe_type(value)}"
        if is_number:
            continue
        raise ConfigError(
            f"{name}: the record '{record}' should be a number or a 0-d tensor; it {issue}."
        )


def name_issue(record: str) -> str | None:
    """Return what is wrong with the name of a record, and the name to choose."""
    first, *others = record.split("/")
    if not all((first, *others)):
        return "has no name, or a part of it is empty; name it 'aux/value', for example"
    if first in LOGGED:
        return f"has the name of a metric that the trainer logs; name it 'aux/{record}'"
    return None


def is_part(value: object, attributes: Collection[str]) -> bool:
    """Return whether a value is an object with one of these attributes, of a kind of part."""
    return not isinstance(value, type) and any(
        hasattr(value, attribute) for attribute in attributes
    )


def _loss_fault(loss: object, needs_graph: bool) -> str | None:
    if not isinstance(loss, torch.Tensor):
        return f"a 0-d tensor; it is {describe_type(loss)}"
    if loss.ndim:
        return f"a 0-d tensor; it has the shape {tuple(loss.shape)}, so take its mean"
    if not loss.is_floating_point():
        return f"a floating-point tensor; it is of {loss.dtype}"
    if needs_graph and torch.is_grad_enabled() and not loss.requires_grad:
        return (
            "computed from the parameters; it has no gradient (is it detached, a copy by"
            " torch.tensor(...), or computed under torch.no_grad?)"
        )
    return None


def _leaves(records: Mapping[object, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in records.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}/")
        elif prefix or key not in OUTPUTS or torch.is_grad_enabled():
            yield f"{prefix}{key}", value


def check_parameters(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (
            module.sparse and module.weight.requires_grad
        ):
            raise ConfigError(
                f"model: {path or type(module).__name__} has sparse=True, and sparse gradients are"
                " not supported; use sparse=False."
            )
        if any(map(nn.parameter.is_lazy, module.parameters(recurse=False))):
            raise ConfigError(
                f"model: {path or type(module).__name__} is a {type(module).__name__}, whose"
                " parameters have no shape before a forward pass; use the class that takes its"
                " sizes, such as nn.Linear(in_features, out_features)."
            )
