"""Any module that maps inputs to predictions, with one of three losses."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from launcher.errors import ConfigError
from launcher.models.base import Model, Records, accuracy, count_targets, cross_entropy, outputs


class Supervised(Model):
    """`loss(module(input), target)`, for a module that does not compute its own loss.

    Args:
        module: the module; in a configuration, a node with its own `_target_`.
        loss: "cross_entropy": predictions [..., classes] and target [...] int64, or torch's [B, classes, ...] and
            target [B, ...]; "mse" and "bce" (binary cross entropy, predictions before the sigmoid): predictions and
            target of the same shape, where a last axis of 1 may be left out of the target.
    Raises:
        ConfigError: `module` is not a `torch.nn.Module`.
    """

    def __init__(self, module: nn.Module, loss: Literal["cross_entropy", "mse", "bce"] = "cross_entropy"):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"model.module={module!r}: should be a torch.nn.Module; name its class, e.g. "
                "model.module._target_=my_package.MyModule."
            )
        self.module = module
        self.loss = loss

    def forward(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Records]:
        """The mean loss of `(input, target)`; and `accuracy` for cross_entropy and bce. In evaluation also `logits` and
        `targets`.

        Raises:
            ValueError: predictions and target do not fit each other; broadcasting them would train on nonsense.
        """
        input, target = batch
        output = self.module(input)
        if self.loss == "cross_entropy":
            if output.shape[:-1] != target.shape:  # torch's order: classes are axis 1
                output = output.movedim(1, -1)
            logits = output.flatten(0, -2) if output.ndim > 1 else output
            loss = cross_entropy(logits.float(), target.flatten() if target.ndim else target)
            return loss, {"accuracy": accuracy(output, target)} | outputs(self, output, target)
        if output.shape != target.shape and output.shape == (*target.shape, 1):
            output = output.squeeze(-1)
        if output.shape != target.shape:
            raise ValueError(
                f"loss={self.loss}: the module gives {tuple(output.shape)}, and the target is {tuple(target.shape)}."
            )
        if self.loss == "mse":
            return F.mse_loss(output.float(), target.float()), outputs(self, output, target.float())
        loss = F.binary_cross_entropy_with_logits(output.float(), target.float())
        correct = ((output.detach() > 0) == (target > 0.5)).float()
        return loss, {"accuracy": correct.mean()} | outputs(self, output, (target > 0.5).long())

    def num_targets(self, batch: tuple[Tensor, Tensor]) -> Tensor | int:
        return count_targets(batch[1]) if self.loss == "cross_entropy" else batch[1].numel()

    def init_weights(self) -> None:
        """The module's own `init_weights()`, if it has one; otherwise its weights are those of its constructor."""
        own = getattr(self.module, "init_weights", None)
        if callable(own):
            own()

    def shard_units(self) -> list[nn.Module]:
        """The module's own, or the members of its longest list of modules (`nn.ModuleList`, `nn.Sequential`)."""
        own = getattr(self.module, "shard_units", None)
        if callable(own):
            return list(own())
        return longest_list(self.module)


def longest_list(module: nn.Module) -> list[nn.Module]:
    """Members that have parameters, of the outermost longest `nn.ModuleList` or `nn.Sequential`; may be empty."""
    lists = (part for part in module.modules() if isinstance(part, nn.ModuleList | nn.Sequential))
    members = ([member for member in part if any(True for _ in member.parameters())] for part in lists)
    return max(members, key=len, default=[])
