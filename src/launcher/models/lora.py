"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) on a pretrained model, by peft."""

from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import nn

from launcher.errors import ConfigError, needing
from launcher.models.transformers_models import quiet
from launcher.types import NonNegativeInt, PositiveFloat, UnitInterval


@dataclass
class Lora:
    """Settings of the adapters.

    Args:
        r: rank of the adapters. With 0, there are no adapters, and all weights are trained.
        alpha: an adapter's output is multiplied by alpha / r.
        dropout: dropout of an adapter's input.
        target_modules: names of the layers to adapt, or `all-linear`. Default None: peft's choice
            for the architecture.
    """

    r: NonNegativeInt = 0
    alpha: PositiveFloat = 16.0
    dropout: UnitInterval = 0.0
    target_modules: str | list[str] | None = None

    def apply(self, model: object) -> object:
        """Return the model with adapters, which are trained, as are the task's own layers."""
        with needing(
            f"model.lora.r={self.r}: needs the package peft; pip install 'torch-launcher[peft]'."
        ):
            import peft
        names = self.target_modules
        # Peft annotates alpha as an int, but takes any number.
        settings = peft.LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=names,
            modules_to_save=_heads(model) or None,
        )
        try:
            with quiet():
                return peft.get_peft_model(model, settings)
        except ValueError as error:
            first = " ".join(str(error).split())[:300].rstrip(".")
            raise ConfigError(f"model.lora.target_modules={names}: {first}.") from error


def _heads(model: Any) -> list[str]:
    """List the layers that the task has added; an output layer over the vocabulary is not."""
    output = model.get_output_embeddings()
    return [
        name
        for name, child in model.named_children()
        if name != model.base_model_prefix
        and child is not output
        and any(True for _ in child.parameters())
    ]


class FrozenWeights(nn.Module):
    """Keeps the frozen weights out of `owner`'s checkpoints, and recognises them by a hash."""

    def __init__(self, owner: nn.Module, name: str):
        super().__init__()
        self.name = name
        self.fingerprint = _fingerprint(owner)
        owner.register_state_dict_post_hook(_leave_out_frozen)

    def get_extra_state(self) -> str:
        return self.fingerprint

    def set_extra_state(self, state: str) -> None:
        """Check that the adapters were trained on these weights."""
        if state != self.fingerprint:
            raise ConfigError(
                f"model.pretrained={self.name}: its weights have changed since the adapters of this"
                " checkpoint were trained; restore them."
            )


def _leave_out_frozen(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: object
) -> None:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            state.pop(prefix + name, None)


def _fingerprint(module: nn.Module) -> str:
    digest = xxhash.xxh3_64()
    for name, parameter in module.named_parameters():
        # Peft keeps the initial weights of a new head, which are random and unused.
        if not parameter.requires_grad and ".original_module." not in name:
            digest.update(name.encode())
            digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
