"""Modules that are sharded as one, recomputed, or rejected. The tests read modules, without
ranks."""

import copy

import pytest
import torch
from torch import nn

from launcher.errors import ConfigError
from launcher.models.gpt import GPT
from launcher.strategies.auto import auto
from launcher.strategies.recompute import recompute_units
from launcher.strategies.shard_units import shard_units


class Tied(nn.Module):
    """An output layer that is the embedding, and attention that uses its projection's weights
    without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(3)
        )
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight


def gpt(num_layers: int) -> GPT:
    return GPT(vocab_size=10, seq_len=4, dim=8, num_layers=num_layers, num_heads=2)


def names(model: nn.Module, units: list[nn.Module]) -> list[str]:
    by_id = {id(module): name for name, module in model.named_modules()}
    return [by_id[id(unit)] for unit in units]


@pytest.mark.parametrize(
    ("smallest", "expected"),
    [
        (0, []),
        (72, [*(f"layers.{i}.{part}" for i in range(3) for part in (0, 1)), "attention"]),
        (100, ["layers.0", "layers.1", "layers.2", "attention"]),
        (280, ["attention"]),
        (10_000, []),
    ],
)
def test_the_size_rule(smallest, expected):
    model = Tied()
    assert names(model, shard_units(model, smallest)) == expected


def test_a_model_names_its_own_units():
    model = gpt(3)
    assert names(model, shard_units(model)) == ["blocks.2", "blocks.1", "blocks.0"]
    assert "embedding" not in names(model, shard_units(model, 1)), "the output layer uses it"


def test_recomputed_blocks_keep_their_names_and_survive_a_copy():
    torch.manual_seed(0)
    model = gpt(4)
    model.init_weights()
    plain = copy.deepcopy(model)
    recompute_units(model, 2)
    assert ["forward" in vars(block) for block in model.blocks] == [False, True, False, True]
    assert list(model.state_dict()) == list(plain.state_dict())
    other = copy.deepcopy(model)
    nn.init.zeros_(model.embedding.weight)  # the copy's blocks must be its own
    for block in model.blocks:
        for p in block.parameters():
            nn.init.zeros_(p)
    batch = (torch.arange(4)[None], torch.arange(4)[None])
    for each in (other, plain):
        each(batch)[0].backward()
    for (name, p), q in zip(other.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), name


@pytest.mark.parametrize(
    ("model", "every", "words"),
    [
        (nn.Linear(2, 2), 1, "checkpointing=full: Linear has no shard_units"),
        (gpt(2), 3, "checkpointing=3: GPT has 2 blocks"),
    ],
)
def test_recompute_units_rejects_a_model_it_cannot_split(model, every, words):
    with pytest.raises(ConfigError, match=words):
        recompute_units(model, every)


@pytest.mark.parametrize(("world", "name"), [("1", "none"), ("2", "fsdp")])
def test_auto(monkeypatch, world, name):
    monkeypatch.setenv("WORLD_SIZE", world)
    assert auto().name == name
