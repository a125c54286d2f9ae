import math

import pytest
import torch
from torch.nn import functional as F

from launcher.errors import ConfigError
from launcher.models.mlp import MLP

FEATURES = {"num_features": 6, "num_classes": 3, "hidden_dim": 10}
TOKENS = {"vocab_size": 7, "hidden_dim": 10, "context": 3, "embedding_dim": 4}


def mlp(**options):
    model = MLP(**options)
    torch.manual_seed(0)
    model.init_weights()
    return model


def test_features_to_classes():
    model = mlp(**FEATURES)
    input, target = torch.randn(5, 6), torch.tensor([0, 1, 2, 1, -100])
    w = model.state_dict()
    x = input
    for i in range(2):
        x = (x @ w[f"blocks.{i}.0.weight"].T + w[f"blocks.{i}.0.bias"]).clamp(min=0)
    logits = x @ w["head.weight"].T + w["head.bias"]
    loss, records = model((input, target))
    torch.testing.assert_close(loss, F.cross_entropy(logits[:4], target[:4]))
    right = sum(
        int(row.argmax()) == t for row, t in zip(logits[:4], target[:4].tolist(), strict=True)
    )
    assert records["accuracy"].item() == right / 4


def test_tokens_to_the_next_one_by_the_last_few():
    model = mlp(**TOKENS)
    input = torch.tensor([[1, 5, 2, 2, 6], [0, 3, 4, 1, 1]])
    embedding = model.embedding.weight
    logits = model.logits(input)
    assert logits.shape == (2, 5, 7)
    for b in range(2):
        for t in range(5):
            seen = [embedding[input[b, s]] if s >= 0 else torch.zeros(4) for s in (t - 2, t - 1, t)]
            x = torch.cat(seen)
            for block in model.blocks:
                x = block(x)
            torch.testing.assert_close(logits[b, t], model.head(x))
    loss, _ = model((input, input.roll(-1, 1)))
    torch.testing.assert_close(
        loss, F.cross_entropy(logits.flatten(0, 1), input.roll(-1, 1).flatten())
    )


def test_initial_deviations():
    model = mlp(num_features=200, num_classes=100, hidden_dim=300, num_layers=2)
    assert model.blocks[0][0].weight.std().item() == pytest.approx(math.sqrt(2 / 200), rel=0.03)
    assert model.blocks[1][0].weight.std().item() == pytest.approx(math.sqrt(2 / 300), rel=0.03)
    assert model.head.weight.std().item() == pytest.approx(math.sqrt(2 / 400), rel=0.03)
    assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith("bias"))


@pytest.mark.parametrize("options", [FEATURES, TOKENS])
def test_init_weights_fills_everything_after_the_meta_device(options):
    with torch.device("meta"):
        model = MLP(**options)
    model.to_empty(device="cpu")
    for tensor in model.parameters():
        tensor.data.fill_(math.nan)
    torch.manual_seed(0)
    model.init_weights()
    expected = mlp(**options).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_dropout_acts_in_training_alone():
    model = mlp(**FEATURES, dropout=0.5)
    batch = torch.randn(8, 6), torch.zeros(8, dtype=torch.long)
    assert model(batch)[0] != model(batch)[0]
    model.eval()
    assert model(batch)[0] == model(batch)[0]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, r"null: .*data=text or data=digits"),
        ({"num_features": 4}, "null"),
        ({"num_classes": 4}, "null"),
        ({"vocab_size": 7, "num_features": 3, "num_classes": 2}, r"7: .*null"),
    ],
)
def test_data_of_neither_or_both_kinds_are_rejected(options, wrong):
    with pytest.raises(ConfigError, match=rf"^model\.vocab_size={wrong}"):
        MLP(**options)
