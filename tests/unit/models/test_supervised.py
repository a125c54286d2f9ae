import pytest
import torch
from torch import nn
from torch.nn import functional as F

from launcher.errors import ConfigError
from launcher.models.supervised import Supervised


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def test_cross_entropy_over_the_last_axis():
    module = network()
    for shape in ((5,), (5, 2)):
        input, target = torch.randn(*shape, 4), torch.randint(0, 3, shape)
        loss, records = Supervised(module)((input, target))
        logits = module(input)
        torch.testing.assert_close(loss, F.cross_entropy(logits.reshape(-1, 3), target.reshape(-1)))
        assert records["accuracy"].item() == pytest.approx(
            (logits.argmax(-1) == target).float().mean().item()
        )


def test_cross_entropy_over_torchs_class_axis():
    module = nn.Conv2d(1, 3, 3, padding=1)
    input, target = torch.randn(2, 1, 5, 6), torch.randint(0, 3, (2, 5, 6))
    loss, records = Supervised(module)((input, target))
    torch.testing.assert_close(loss, F.cross_entropy(module(input), target))
    expected = (module(input).argmax(1) == target).float().mean().item()
    assert records["accuracy"].item() == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_mse(shape):
    module = nn.Linear(4, 1)
    input, target = torch.randn(5, 4), torch.randn(shape)
    loss, records = Supervised(module, "mse")((input, target))
    torch.testing.assert_close(loss, (module(input).flatten() - target.flatten()).square().mean())
    assert records == {}


def test_bce():
    module = nn.Linear(4, 1)
    input, target = torch.randn(5, 4), torch.tensor([0, 1, 1, 0, 1])
    loss, records = Supervised(module, "bce")((input, target))
    p = module(input).flatten().sigmoid()
    torch.testing.assert_close(loss, -torch.where(target == 1, p, 1 - p).log().mean())
    assert records["accuracy"].item() == pytest.approx(
        ((p > 0.5) == (target == 1)).float().mean().item()
    )


def test_shapes_that_would_be_broadcast_are_rejected():
    with pytest.raises(ValueError, match=r"the module gives \(5, 3\), and the target is \(5,\)"):
        Supervised(network(), "mse")((torch.randn(5, 4), torch.randn(5)))


def test_the_modules_own_init_weights_and_shard_units_are_used():
    class Own(nn.Linear):
        def init_weights(self):
            nn.init.constant_(self.weight, 2.0)

        def shard_units(self):
            return [self]

    model = Supervised(Own(4, 3))
    model.init_weights()
    assert (model.module.weight == 2).all()
    assert model.shard_units() == [model.module]


def test_shard_units_are_the_longest_list():
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    assert Supervised(
        nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), layers)
    ).shard_units() == list(layers)
    assert Supervised(nn.Linear(2, 2)).shard_units() == []


def test_supervised_without_a_module_is_rejected():
    with pytest.raises(ConfigError, match=r"model\.module\._target_="):
        Supervised("resnet")


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, features, labels=None):
        logits = self.layer(features)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def test_a_module_that_returns_its_loss_gets_dict_batches():
    model = Supervised(OwnLoss())
    batch = {"features": torch.randn(4, 3), "labels": torch.tensor([0, 1, -100, 1])}
    loss, records = model.eval()(batch)
    assert loss == model.module(**batch)["loss"] and model.num_targets(batch) == 3
    assert 0 <= records["accuracy"] <= 1 and records["targets"] is batch["labels"]
    empty = batch | {"labels": torch.full((4,), -100)}
    model.train()(empty)[0].backward()
    assert (
        model(empty)[0] == 0
        and not model.module.layer.weight.grad.any()
        and model.num_targets(empty) == 0
    )


def test_a_module_that_returns_no_loss_for_a_dict_batch_is_rejected():
    with pytest.raises(
        ConfigError, match=r"^model\.module=OwnLoss: returned no `loss` for a batch of features;"
    ):
        Supervised(OwnLoss())({"features": torch.randn(4, 3)})


class Tagger(nn.Module):
    """Returns the loss of its labels [B, T], shifted by one token or not."""

    def __init__(self, shift: bool):
        super().__init__()
        self.layer, self.shift = nn.Embedding(7, 7), shift

    def forward(self, input_ids, labels):
        logits = self.layer(input_ids)
        wanted, given = (labels[:, 1:], logits[:, :-1]) if self.shift else (labels, logits)
        return {"loss": F.cross_entropy(given.flatten(0, 1), wanted.flatten()), "logits": logits}


@pytest.mark.parametrize("scale", [1.0, 0.02, 0.002], ids="weights x {}".format)
@pytest.mark.parametrize("masked", [0, 3])
@pytest.mark.parametrize("training", [True, False])
def test_module_that_shifts_its_labels_is_rejected_at_its_first_loss(
    masked: int, training: bool, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New weights are small: all classes are alike, and so are the two losses, to a thousandth."""
    torch.manual_seed(0)
    monkeypatch.setattr(
        nn.Embedding, "reset_parameters", lambda layer: nn.init.normal_(layer.weight, std=scale)
    )
    tokens = torch.randint(0, 7, (4, 9))
    batch = {"input_ids": tokens, "labels": tokens.clone()}
    batch["labels"][:, :masked] = -100
    with pytest.raises(
        ConfigError, match=r"^model\.module=Tagger: it shifts its labels by one token"
    ):
        Supervised(Tagger(shift=True)).train(training)(batch)
    loss, records = Supervised(Tagger(shift=False)).train(training)(batch)
    assert loss > 0 and "accuracy" in records


def test_shift_is_looked_for_until_a_batch_can_show_it() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 7, (4, 9))
    model = Supervised(Tagger(shift=True))
    with torch.no_grad():
        model({"input_ids": tokens, "labels": torch.full((4, 9), -100)})
    with pytest.raises(ConfigError, match="it shifts its labels"):
        model({"input_ids": tokens, "labels": tokens})


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_causal_model_of_transformers_is_rejected_when_it_is_built(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, name)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 11}
    with pytest.raises(
        ConfigError, match=rf"^model\.module={name}: .*use model=huggingface or model=pretrained"
    ):
        Supervised(kind(kind.config_class(**sizes)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"loss": "l1"}, F.l1_loss),
        (
            {"loss": "huber", "huber_delta": 0.3},
            lambda output, target: F.huber_loss(output, target, delta=0.3),
        ),
        (
            {"loss": nn.SmoothL1Loss(beta=0.5)},
            lambda output, target: F.smooth_l1_loss(output, target, beta=0.5),
        ),
        ({"loss": F.soft_margin_loss}, F.soft_margin_loss),
    ],
)
def test_losses_of_numbers(options, expected):
    module = nn.Linear(4, 2)
    input, target = torch.randn(5, 4), torch.randn(5, 2)
    loss, _ = Supervised(module, **options)((input, target))
    torch.testing.assert_close(loss, expected(module(input), target))


def test_class_weights_are_filled_after_the_meta_device():
    with torch.device("meta"):
        model = Supervised(nn.Linear(4, 3), class_weights=[1.0, 0.0, 2.5])
    model.to_empty(device="cpu")
    model.init_weights()
    assert (
        model.class_weights.tolist() == [1.0, 0.0, 2.5]
        and "class_weights" not in model.state_dict()
    )


def test_loss_by_path_counts_by_samples():
    batch = torch.randn(5, 4), torch.randn(5, 2)
    assert Supervised(nn.Linear(4, 2), F.mse_loss).num_targets(batch) is None
    assert Supervised(nn.Linear(4, 2), "mse").num_targets(batch) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"loss": "msee"},
            r"model.loss=msee: should be one of cross_entropy, focal, bce, mse, l1, huber",
        ),
        ({"loss": 3}, "model.loss: should be a name or callable"),
        (
            {"loss": "mse", "label_smoothing": 0.1},
            "model.label_smoothing=0.1: loss=mse does not use it",
        ),
        ({"loss": "focal", "label_smoothing": 0.1}, "choose model.loss=cross_entropy"),
        (
            {"loss": F.mse_loss, "class_weights": [1.0, 2.0]},
            r"loss=function does not use it; remove the key",
        ),
    ],
)
def test_settings_of_another_loss_are_rejected(options, message):
    with pytest.raises(ConfigError, match=message):
        Supervised(nn.Linear(4, 3), **options)


def test_class_weights_must_fit_the_classes():
    with pytest.raises(ConfigError, match="has 2 weights, and the module predicts 3 classes"):
        Supervised(network(), class_weights=[1.0, 2.0])(
            (torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))
        )
