"""Any module that maps inputs to predictions, with a loss by name or by path."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.config.messages import describe_type
from launcher.config.schema.value_types import check_call
from launcher.errors import ConfigError
from launcher.models.base import (
    IGNORED,
    Model,
    Records,
    binary_records,
    class_records,
    count_targets,
    outputs,
)
from launcher.models.declared import check_declared, declared_method, declares
from launcher.types import NonNegativeFloat, PositiveFloat, UnitInterval

Name = Literal["cross_entropy", "focal", "bce", "mse", "l1", "huber"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps predictions and targets to a 0-d mean."""
MODULE = "model.module"
CLASS_LOSSES = ("cross_entropy", "focal")
"""Losses of class scores [..., classes] and targets [...] int64."""


def elementwise(name: str, huber_delta: float) -> Loss:
    """Return the loss of this name, a mean over all elements of two tensors of one shape."""
    functions: dict[str, Loss] = {
        "bce": F.binary_cross_entropy_with_logits,
        "mse": F.mse_loss,
        "l1": F.l1_loss,
        "huber": lambda output, target: F.huber_loss(output, target, delta=huber_delta),
    }
    return functions[name]


def class_loss(
    logits: Tensor,
    target: Tensor,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    gamma: float = 0.0,
) -> Tensor:
    """Compute the mean loss over the targets that are not `IGNORED`, or 0 if there are none.

    The mean divides by the number of targets, not by the sum of their weights. So each target
    counts the same however a batch is divided into micro-batches and ranks. The focal loss is
    `(1 - p)^gamma * -log(p)`, where p is the probability of the target.

    Args:
        logits: [N, classes].
        target: [N] int64.
        weights: [classes], factors of the targets' losses by their class.
        label_smoothing: share of each target that is spread over all classes.
        gamma: exponent of the focal loss, which cannot be combined with `label_smoothing`.
    """
    count = count_targets(target).clamp(min=1)
    if not gamma:
        total = F.cross_entropy(
            logits, target, weights, reduction="sum", label_smoothing=label_smoothing
        )
        return total / count
    losses = F.cross_entropy(logits, target, reduction="none")
    # The gradient of x^gamma at 0 is infinite for gamma < 1.
    missed = (-torch.expm1(-losses)).clamp(min=torch.finfo(losses.dtype).tiny)
    losses = missed**gamma * losses
    if weights is not None:
        losses = losses * weights[target.clamp(min=0)]
    return losses.masked_fill(target == IGNORED, 0.0).sum() / count


class Supervised(Model):
    """Computes `loss(module(input), target)`, for a module that does not compute its own loss.

    Args:
        module: the module. In a configuration, it is a node with its own `_target_`.
        loss: a name or a callable. "cross_entropy" and "focal" take predictions [..., classes] and
            target [...] int64, or torch's [B, classes, ...] and target [B, ...]. "bce" (binary
            cross entropy, predictions before the sigmoid), "mse", "l1" and "huber" take predictions
            and target of the same shape, where a last axis of 1 may be left out of the target. A
            callable takes unchanged predictions and target and returns a 0-d mean over the samples.
            In a configuration, it is a node with its own `_target_`.
        label_smoothing: for cross_entropy, the share of each target that is spread over all
            classes.
        class_weights: for cross_entropy and focal, factors of the targets' losses, one for each
            class.
        focal_gamma: exponent by which focal lowers the losses of targets that are predicted well.
        huber_delta: error from which on huber is linear.
    Raises:
        ConfigError: `module` is not a `torch.nn.Module`, or `loss` does not use a setting.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        module: nn.Module,
        loss: Name | nn.Module = "cross_entropy",
        label_smoothing: UnitInterval = 0.0,
        class_weights: list[NonNegativeFloat] | None = None,
        focal_gamma: NonNegativeFloat = 2.0,
        huber_delta: PositiveFloat = 1.0,
    ):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"model.module={module!r}: should be a torch.nn.Module; name its class, e.g. "
                "model.module._target_=my_package.MyModule."
            )
        check_call(f"{MODULE}: {type(module).__name__}.forward", module.forward, "input")
        check_declared(module, MODULE, ("init_weights", "shard_units"))
        self.constructor_makes_weights = not declares(module, "init_weights")
        for name, value, losses in (
            ("label_smoothing", label_smoothing, CLASS_LOSSES[:1]),
            ("class_weights", class_weights, CLASS_LOSSES),
        ):
            if value and loss not in losses:
                raise ConfigError(
                    f"model.{name}={value}: is for model.loss={' or '.join(losses)}; choose it, or"
                    " remove the key."
                )
        self.module = module
        self.loss: Any = loss
        self.label_smoothing = label_smoothing
        self.focal_gamma = focal_gamma if loss == "focal" else 0.0
        self.huber_delta = huber_delta
        self._class_weights = class_weights
        weights = None if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Records]:
        """Compute the mean loss of `(input, target)`, and `accuracy` for losses of classes and bce.

        A target whose shape does not fit is a ValueError, since broadcasting would train on
        nonsense.
        """
        input, target = _pair(batch)
        output = self.module(input)
        if not isinstance(self.loss, str):
            return self.loss(output, target), {}
        if not isinstance(output, Tensor):
            raise ConfigError(
                f"model.module={type(self.module).__name__}: returned {describe_type(output)}, and"
                f" model.loss={self.loss} needs a tensor; for models of transformers use"
                " model=huggingface or model=pretrained."
            )
        if self.loss in CLASS_LOSSES:
            return self._class_loss(output, target)
        return self._elementwise_loss(output, target)

    def _class_loss(self, output: Tensor, target: Tensor) -> tuple[Tensor, Records]:
        # In torch's order, classes are axis 1.
        if output.shape[:-1] != target.shape:
            output = output.movedim(1, -1)
        if self._class_weights is not None and output.shape[-1] != len(self._class_weights):
            raise ConfigError(
                f"model.class_weights: has {len(self._class_weights)} weights, and the module"
                f" predicts {output.shape[-1]} classes; give one for each."
            )
        logits = (output.flatten(0, -2) if output.ndim > 1 else output[None]).float()
        weights = self.class_weights.to(logits.dtype) if self.class_weights is not None else None
        loss = class_loss(
            logits, target.reshape(-1), weights, self.label_smoothing, self.focal_gamma
        )
        return loss, class_records(self, output, target)

    def _elementwise_loss(self, output: Tensor, target: Tensor) -> tuple[Tensor, Records]:
        if output.shape == (*target.shape, 1):
            output = output.squeeze(-1)
        if output.shape != target.shape:
            raise ValueError(
                f"loss={self.loss}: the module gives {tuple(output.shape)}, and the target is"
                f" {tuple(target.shape)}."
            )
        loss = elementwise(self.loss, self.huber_delta)(output.float(), target.float())
        if self.loss != "bce":
            return loss, outputs(self, output, target.float())
        return loss, binary_records(self, output, target)

    def num_targets(self, batch: tuple[Tensor, Tensor]) -> Tensor | int | None:
        """Return the number of targets, or None for a loss by path, which may be any mean."""
        _, target = _pair(batch)
        if not isinstance(self.loss, str):
            return None
        if self.loss in CLASS_LOSSES:
            return count_targets(target)
        return target.numel()

    def init_weights(self) -> None:
        """Call the module's declared `init_weights()`, else keep the weights of its constructor."""
        if self._class_weights is not None and self.class_weights is not None:
            self.class_weights = torch.tensor(self._class_weights, device=self.class_weights.device)
        method = declared_method(self.module, "init_weights", MODULE)
        if method is not None:
            method()

    def shard_units(self) -> list[nn.Module]:
        """Return the units that the module declares, or the members of its longest list."""
        method = declared_method(self.module, "shard_units", MODULE)
        if method is None:
            return longest_list(self.module)
        return list(method())


def _pair(batch: object) -> tuple[Tensor, Tensor]:
    """Return (input, target). The keys of a mapping would be unpacked too."""
    if isinstance(batch, Mapping):
        raise ConfigError(
            "data: a batch for model=supervised is (input, target), and this one is a mapping; for"
            " a module that takes it, return (loss, records) from its forward, and name it as"
            " model._target_."
        )
    input, target = cast(tuple[Tensor, Tensor], batch)
    return input, target


def longest_list(module: nn.Module) -> list[nn.Module]:
    """Return the members with parameters of the longest `nn.ModuleList` or `nn.Sequential`."""
    lists = (part for part in module.modules() if isinstance(part, nn.ModuleList | nn.Sequential))
    members = (
        [member for member in part if any(True for _ in member.parameters())] for part in lists
    )
    return max(members, key=len, default=[])
