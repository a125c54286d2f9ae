import pytest
import torch
from torch import nn
from torch.nn import functional as F

from launcher.errors import ConfigError
from launcher.models.supervised import Supervised


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("kind", ["vectors", "sequences", "images"])
def test_cross_entropy_over_the_last_axis_or_torchs(kind):
    module = nn.Conv2d(1, 3, 3, padding=1) if kind == "images" else network()
    shape = {"vectors": (5,), "sequences": (5, 2), "images": (2, 5, 6)}[kind]
    input = torch.randn(2, 1, 5, 6) if kind == "images" else torch.randn(*shape, 4)
    target = torch.randint(0, 3, shape)
    loss, records = Supervised(module)((input, target))
    logits = module(input).movedim(1, -1) if kind == "images" else module(input)
    torch.testing.assert_close(loss, F.cross_entropy(logits.reshape(-1, 3), target.reshape(-1)))
    expected = (logits.argmax(-1) == target).float().mean().item()
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


def test_the_init_weights_and_shard_units_that_the_module_declares_are_used():
    class Own(nn.Linear):
        launcher_methods = ("init_weights", "shard_units")

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
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), layers)
    assert Supervised(module).shard_units() == list(layers)
    assert Supervised(nn.Linear(2, 2)).shard_units() == []


def test_supervised_without_a_module_is_rejected():
    with pytest.raises(ConfigError, match=r"model\.module\._target_="):
        Supervised("resnet")


class Outputs(nn.Linear):
    """Returns a mapping, as models of transformers do."""

    def forward(self, input):
        return {"logits": super().forward(input)}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"input_ids": 1, "labels": 2}, r"^data: .* this one is a mapping; .*model\._target_\.$"),
        ((torch.zeros(2, 4), torch.zeros(2)), "^model.module=Outputs: returned a dict, .*tensor;"),
    ],
)
def test_a_module_with_an_interface_of_its_own_is_rejected(batch, message):
    with pytest.raises(ConfigError, match=message):
        Supervised(Outputs(4, 1), "mse")(batch)


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
    assert model.class_weights.tolist() == [1.0, 0.0, 2.5]
    assert "class_weights" not in model.state_dict()


def test_loss_by_path_counts_by_samples():
    batch = torch.randn(5, 4), torch.randn(5, 2)
    assert Supervised(nn.Linear(4, 2), F.mse_loss).num_targets(batch) is None
    assert Supervised(nn.Linear(4, 2), "mse").num_targets(batch) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "mse", "label_smoothing": 0.1}, "^model.label_smoothing=0.1: .*cross_entropy;"),
        ({"loss": "focal", "label_smoothing": 0.1}, "is for model.loss=cross_entropy;"),
        ({"loss": F.mse_loss, "class_weights": [1.0]}, r"^model.class_weights=.*remove the key"),
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
