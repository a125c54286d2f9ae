import copy
from typing import Any

import pytest
import torch
from torch import nn

from launcher.errors import ConfigError
from launcher.models.gpt import GPT
from launcher.models.mlp import MLP

pytest.importorskip("torchao")
Fp8 = pytest.importorskip("launcher.optim.fp8").Fp8
CPU = torch.device("cpu")


def gpt(**options: Any) -> GPT:
    torch.manual_seed(0)
    model = GPT(32, 16, dim=32, num_layers=2, num_heads=2, tie_embeddings=False, **options)
    model.init_weights()
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 32, (2, 4, 16), generator=torch.Generator().manual_seed(1))
    return tokens[0], tokens[1]


def kinds(model: nn.Module) -> dict[str, str]:
    return {
        name: type(layer).__name__
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    }


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_a_model_keeps_its_parameters_and_almost_its_numbers(recipe):
    model, precision = gpt(), Fp8(recipe, emulate=True)
    precision.setup(CPU)
    original, tensors = copy.deepcopy(model), dict(model.named_parameters())
    assert precision.convert(model) is model
    assert list(model.state_dict()) == list(original.state_dict())
    assert all(parameter is tensors[name] for name, parameter in model.named_parameters())
    for one in (model, original):
        with precision.autocast(CPU):
            loss, _ = one(batch())
        loss.backward()
    pairs = zip(model.parameters(), original.parameters(), strict=True)
    for gradient, expected in ((p.grad, q.grad) for p, q in pairs):
        assert gradient is not None and expected is not None and gradient.dtype == torch.float32
        distance = (gradient - expected).norm() / expected.norm()
        assert 0 < distance < 0.15


def test_only_layers_of_the_blocks_that_fit_are_converted():
    precision = Fp8(emulate=True)
    model = precision.convert(gpt(ffn_dim=40))
    assert kinds(model) == {
        **{
            f"blocks.{block}.{name}": kind
            for block in (0, 1)
            for name, kind in {
                **{f"attention.{key}": "Float8Linear" for key in ("q", "k", "v", "out")},
                **{f"ffn.{key}": "Linear" for key in ("gate", "up", "down")},
            }.items()
        },
        "head": "OutputLayer",
    }
    assert precision.note == "fp8 (tensorwise) in 8 of 15 linear layers, else bf16"


def test_layers_that_torch_does_not_call_are_not_converted():
    class Encoder(nn.TransformerEncoderLayer):
        launcher_methods = ("shard_units",)

        def shard_units(self) -> list[nn.Module]:
            return [self]

    converted = Fp8(emulate=True).convert(Encoder(32, 2, dim_feedforward=64))
    assert kinds(converted) == {
        "self_attn.out_proj": "NonDynamicallyQuantizableLinear",
        "linear1": "Float8Linear",
        "linear2": "Float8Linear",
    }


@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.Linear(32, 32)), MLP(num_features=8, num_classes=4, hidden_dim=24)]
)
def test_a_model_without_layers_that_fit_is_rejected(model):
    with pytest.raises(ConfigError, match=f"{type(model).__name__} has no shard_units"):
        Fp8(emulate=True).convert(model)


def test_a_device_without_fp8_is_rejected(caplog):
    with pytest.raises(ConfigError, match=r"a cpu device has no fp8; .* precision\.emulate=true"):
        Fp8().setup(CPU)
    Fp8(emulate=True).setup(CPU)
    assert not caplog.records
