import copy
import io
import sys

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from launcher.errors import ConfigError
from launcher.models.gpt import GPT
from launcher.models.supervised import Supervised
from launcher.optim import optimizers, schedulers
from launcher.train.build import build_optimizer

needs_muon = pytest.mark.skipif(
    not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with torch 2.9"
)


class Mixed(nn.Module):
    """One parameter of each kind, and a frozen one."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(3, 4)
        self.hidden = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.ones(4))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 2)

    def forward(self, index):
        return self.head(self.norm(self.frozen(self.hidden(self.embedding(index)))) * self.scale)


def mixed():
    torch.manual_seed(0)
    return Mixed()


def tiny_gpt(tie_embeddings=True):
    model = GPT(
        vocab_size=11, seq_len=8, dim=16, num_layers=2, num_heads=2, tie_embeddings=tie_embeddings
    )
    torch.manual_seed(0)
    model.init_weights()
    return model


def members(model, optimizer):
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        group["name"]: sorted(names[id(p)] for p in group["params"])
        for group in optimizer.param_groups
    }


def train(model, steps, *parts, seed=0):
    """Train with optimizers and schedules."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        tokens = torch.randint(0, 11, (2, 9), generator=generator)
        model((tokens[:, :-1], tokens[:, 1:]))[0].backward()
        for part in parts:
            part.step()
        model.zero_grad()


def equal(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("factory", [optimizers.adamw, optimizers.adam, optimizers.sgd])
@pytest.mark.parametrize(
    ("no_decay", "expected"),
    [
        (None, ["head.bias", "hidden.bias", "norm.bias", "norm.weight"]),
        (["embeddings"], ["embedding.weight"]),
        (["biases"], ["head.bias", "hidden.bias"]),
        (
            ["norms", "biases", "embeddings"],
            ["embedding.weight", "head.bias", "hidden.bias", "norm.bias", "norm.weight"],
        ),
    ],
)
def test_decay_groups(factory, no_decay, expected):
    model = mixed()
    optimizer = factory(model, lr=0.1, weight_decay=0.3, no_decay=no_decay)
    groups = members(model, optimizer)
    assert groups["no_decay"] == expected
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert set(groups["decay"]) == trainable - set(expected)
    assert {g["name"]: g["weight_decay"] for g in optimizer.param_groups} == {
        "decay": 0.3,
        "no_decay": 0.0,
    }


def test_a_tied_embedding_is_an_embedding_once():
    model = tiny_gpt()
    groups = members(model, optimizers.adamw(model, no_decay=["norms", "embeddings"]))
    assert "embedding.weight" in groups["no_decay"] and "embedding.weight" not in groups["decay"]


@pytest.mark.parametrize("factory", [optimizers.adamw, optimizers.adam, optimizers.sgd])
def test_fused_where_the_device_can(factory):
    fused = lambda model, wanted: {g["fused"] for g in factory(model, fused=wanted).param_groups}  # noqa: E731
    assert fused(mixed(), None) == fused(mixed(), True) == {True}
    assert fused(mixed(), False) == {None}
    with torch.device("meta"):
        model = Mixed()
    assert fused(model, None) == {None}
    with pytest.raises(
        ConfigError, match=r"optimizer\.fused=true: .* no fused kernel for torch.float32 on meta"
    ):
        factory(model, fused=True)


def test_a_torch_optimizer_by_its_name_alone():
    model = mixed()
    config = OmegaConf.create(
        {"_target_": "torch.optim.RMSprop", "_partial_": True, "lr": 0.01, "alpha": 0.5}
    )
    optimizer = build_optimizer(config, model)
    assert type(optimizer) is torch.optim.RMSprop and optimizer.defaults["alpha"] == 0.5
    trained = [p for p in model.parameters() if p.requires_grad]
    assert [*map(id, optimizer.param_groups[0]["params"])] == [*map(id, trained)]


class Holder(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class TestHiddenMatrices:
    @pytest.mark.parametrize("tied", [True, False])
    def test_of_a_gpt(self, tied):
        model = tiny_gpt(tied)
        found = {id(p) for p in optimizers.hidden_matrices(model)}
        of_blocks = [p for name, p in model.blocks.named_parameters() if "norm" not in name]
        assert found == {*map(id, of_blocks)} and len(found) == 14

    def test_of_a_plain_module(self):
        model = mixed()
        assert [id(p) for p in optimizers.hidden_matrices(model)] == [id(model.hidden.weight)]

    @pytest.mark.parametrize(
        "build",
        [
            pytest.param(
                lambda a, b, c: nn.Sequential(nn.Sequential(a, nn.ReLU()), b, nn.Sequential(c)),
                id="head",
            ),
            pytest.param(
                lambda a, b, c: Holder(blocks=nn.Sequential(a, b), head=c), id="blocks, head"
            ),
            pytest.param(lambda a, b, c: Holder(a=a, b=b, c=c), id="attributes"),
        ],
    )
    def test_are_the_same_however_the_layers_are_arranged(self, build):
        layers = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        model = build(*layers)
        assert [id(p) for p in optimizers.hidden_matrices(model)] == [
            id(part.weight) for part in layers[:2]
        ]

    def test_within_the_last_block_are_hidden(self):
        blocks = [Holder(up=nn.Linear(4, 8), down=nn.Linear(8, 4)) for _ in range(2)]
        # A tied output layer.
        model = Supervised(Holder(embedding=nn.Embedding(5, 4), blocks=nn.Sequential(*blocks)))
        assert len(optimizers.hidden_matrices(model)) == 4


@needs_muon
class TestMuon:
    OPTIONS = {"lr": 0.02, "adamw_lr": 0.01, "weight_decay": 0.1, "fused": False}

    def test_equals_muon_and_adamw_apart(self):
        one, two = tiny_gpt(), tiny_gpt()
        optimizer = optimizers.muon(one, **self.OPTIONS)
        groups = members(one, optimizer)
        assert list(groups) == ["muon", "decay", "no_decay"]
        assert groups["decay"] == ["embedding.weight"]
        train(one, 4, optimizer)

        muon, decay, no_decay = (map(two.get_parameter, names) for names in groups.values())
        apart = [
            torch.optim.Muon(muon, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(decay, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1),
            torch.optim.AdamW(no_decay, lr=0.01, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        train(two, 4, *apart)
        assert equal(one, two)

    @pytest.mark.parametrize("how", ["state_dict", "deepcopy"])
    def test_muon_resumes_from_its_state(self, how):
        whole = tiny_gpt()
        optimizer = optimizers.muon(whole, **self.OPTIONS)
        scheduler = schedulers.cosine(optimizer, max_steps=6, warmup_steps=1)
        train(whole, 3, optimizer, scheduler)

        other, resumed, going_on = copy.deepcopy((whole, optimizer, scheduler))
        if how == "state_dict":
            resumed = optimizers.muon(other, **self.OPTIONS)
            going_on = schedulers.cosine(resumed, max_steps=6, warmup_steps=1)
            buffer = io.BytesIO()
            torch.save(optimizer.state_dict(), buffer)
            buffer.seek(0)
            resumed.load_state_dict(torch.load(buffer, weights_only=True))
            going_on.load_state_dict(scheduler.state_dict())

        train(whole, 3, optimizer, scheduler, seed=1)
        train(other, 3, resumed, going_on, seed=1)
        assert equal(whole, other)

    def test_a_model_without_hidden_matrices(self):
        model = nn.Linear(3, 2)
        assert list(members(model, optimizers.muon(model))) == ["decay", "no_decay"]

    def test_the_gradient_scaler_takes_it(self):
        model = tiny_gpt()
        optimizer, scaler = optimizers.muon(model), torch.amp.GradScaler("cpu", init_scale=4.0)
        before = copy.deepcopy(model)
        tokens = torch.randint(0, 11, (2, 8))
        for bad in (True, False):
            scaler.scale(model((tokens, tokens))[0]).backward()
            if bad:
                model.norm.weight.grad[0] = float("inf")
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert equal(model, before) is bad

    def test_groups_are_fixed(self):
        optimizer = optimizers.muon(tiny_gpt())
        with pytest.raises(RuntimeError, match="does not support adding parameter groups"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: optimizers.sgd(mixed(), momentum=0.0, nesterov=True),
            r"optimizer\.nesterov=true: needs momentum",
        ),
        (lambda: optimizers.adamw(mixed(), betas=[0.9]), r"optimizer\.betas=\[0\.9\]: "),
        (lambda: optimizers.adamw(mixed().requires_grad_(False)), "model: it has no trainable"),
        (lambda: optimizers.muon(mixed()), r"optimizer=muon: torch .* has no Muon"),
        (lambda: optimizers.lion(mixed()), r"optimizer=lion: .*'torch-launcher\[lion\]'"),
    ],
)
def test_what_an_optimizer_lacks_is_named(monkeypatch, make, message):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    monkeypatch.setitem(sys.modules, "lion_pytorch", None)
    with pytest.raises(ConfigError, match=f"^{message}"):
        make()
