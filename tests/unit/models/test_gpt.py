import math

import pytest
import torch

from launcher.errors import ConfigError
from launcher.models.gpt import GPT

TINY = {"vocab_size": 11, "seq_len": 16, "dim": 24, "num_layers": 2, "num_heads": 4}


def gpt(seed=0, **options):
    model = GPT(**{**TINY, **options})
    torch.manual_seed(seed)
    model.init_weights()
    return model


def tokens(*shape):
    return torch.randint(0, TINY["vocab_size"], shape, generator=torch.Generator().manual_seed(1))


def reference_logits(model, input, num_heads, theta, eps):
    """The same network written out again from the papers, one sequence, head and pair at a time, in
    float64."""
    weights = {name: w.detach().double() for name, w in model.named_parameters()}

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weights[f"{name}.weight"]

    # X [T, head_dim]: pairs (i, i + d/2) as complex numbers, turned by position * theta^(-2i/d).
    def turned(x):
        half = x.shape[-1] // 2
        angle = torch.outer(
            torch.arange(len(x)).double(), theta ** -(torch.arange(half).double() / half)
        )
        z = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([z.real, z.imag], dim=-1)

    rows = []
    for sequence in input:
        x = weights["embedding.weight"][sequence]
        for i in range(len(model.blocks)):
            block = f"blocks.{i}"
            y = norm(x, f"{block}.attention_norm")
            q, k, v = (y @ weights[f"{block}.attention.{name}.weight"].T for name in "qkv")
            size = q.shape[1] // num_heads
            heads = []
            for h in range(num_heads):
                g = h * (k.shape[1] // size) // num_heads  # the group that this head shares
                qh = turned(q[:, h * size : (h + 1) * size])
                kh, vh = turned(k[:, g * size : (g + 1) * size]), v[:, g * size : (g + 1) * size]
                scores = (qh @ kh.T / math.sqrt(size)).masked_fill(
                    torch.ones(len(x), len(x)).triu(1).bool(), -math.inf
                )
                heads.append(scores.softmax(-1) @ vh)
            x = x + torch.cat(heads, -1) @ weights[f"{block}.attention.out.weight"].T
            y = norm(x, f"{block}.ffn_norm")
            gate, up = (y @ weights[f"{block}.ffn.{name}.weight"].T for name in ("gate", "up"))
            x = x + (gate * gate.sigmoid() * up) @ weights[f"{block}.ffn.down.weight"].T
        out = weights.get("head.weight", weights["embedding.weight"])
        rows.append(norm(x, "norm") @ out.T)
    return torch.stack(rows)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_kv_heads": 2}, {"num_kv_heads": 1}, {"tie_embeddings": False, "rope_theta": 50.0}],
)
def test_equals_the_network_written_out(options):
    model = gpt(**options)
    for parameter in model.parameters():  # large enough for every part to matter
        torch.nn.init.normal_(parameter, std=0.5)
    input = tokens(2, 13)
    expected = reference_logits(model, input, 4, options.get("rope_theta", 10000.0), 1e-5)
    torch.testing.assert_close(model.logits(input).double(), expected, rtol=1e-4, atol=1e-4)


def test_tied_weights_are_one_parameter_with_both_gradients():
    tied, untied = gpt(), gpt(tie_embeddings=False)
    count = lambda model: sum(p.numel() for p in model.parameters())  # noqa: E731
    assert count(untied) - count(tied) == TINY["vocab_size"] * TINY["dim"]
    assert [name for name in tied.state_dict() if "embedding" in name or "head" in name] == [
        "embedding.weight"
    ]
    with torch.no_grad():
        untied.load_state_dict({**tied.state_dict(), "head.weight": tied.embedding.weight})
    batch = tokens(2, 8), tokens(2, 8)
    for model in (tied, untied):
        model(batch)[0].backward()
    torch.testing.assert_close(
        tied.embedding.weight.grad, untied.embedding.weight.grad + untied.head.weight.grad
    )


def test_initial_deviations():
    model = gpt(vocab_size=256, dim=128, num_layers=8, tie_embeddings=False)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert (parameter == 1).all()
            continue
        expected = 0.02 / math.sqrt(16) if name.endswith(("out.weight", "down.weight")) else 0.02
        assert parameter.std().item() == pytest.approx(expected, rel=0.05), name
        assert parameter.mean().item() == pytest.approx(
            0, abs=5 * expected / math.sqrt(parameter.numel())
        ), name
    loss, _ = model((torch.randint(0, 256, (4, 16)), torch.randint(0, 256, (4, 16))))
    assert loss.item() == pytest.approx(math.log(256), rel=0.05)


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_init_weights_fills_everything_after_the_meta_device(tie_embeddings):
    with torch.device("meta"):
        model = GPT(**TINY, tie_embeddings=tie_embeddings)
    model.to_empty(device="cpu")
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.fill_(math.nan)
    torch.manual_seed(0)
    model.init_weights()
    expected = gpt(tie_embeddings=tie_embeddings)
    for (name, tensor), other in zip(
        [*model.named_parameters(), *model.named_buffers()],
        [*expected.parameters(), *expected.buffers()],
        strict=True,
    ):
        assert torch.equal(tensor, other), name


def test_dropout_acts_in_training_alone_and_follows_the_seed():
    model, batch = gpt(dropout=0.2), (tokens(2, 8), tokens(2, 8))
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(model(batch)[0].item())
    assert losses[0] == losses[1] != losses[2]
    model.eval()
    assert model(batch)[0].item() == gpt()(batch)[0].item()


def test_bf16_autocast_keeps_the_loss_in_float32():
    model, batch = gpt(), (tokens(2, 8), tokens(2, 8))
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = model(batch)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(model(batch)[0].item(), rel=0.01)


def test_sizes():
    # 8/3 * 128 = 341.3, up to a multiple of 32.
    assert GPT(**{**TINY, "dim": 128}).blocks[0].ffn.up.out_features == 352
    assert GPT(**TINY, ffn_dim=50).blocks[0].ffn.up.out_features == 50
    assert GPT(**TINY, num_kv_heads=2).blocks[0].attention.k.out_features == 12


@pytest.mark.parametrize(
    ("options", "wrong", "fix"),
    [
        ({"num_heads": 5}, "model.num_heads=5:", "e.g. model.dim=30."),
        ({"num_heads": 24}, "model.num_heads=24:", "e.g. model.dim=48."),
        ({"num_kv_heads": 3}, "model.num_kv_heads=3:", "e.g. model.num_kv_heads=1."),
    ],
)
def test_sizes_that_do_not_fit(options, wrong, fix):
    with pytest.raises(ConfigError) as error:
        GPT(**{**TINY, **options})
    assert str(error.value).startswith(wrong) and str(error.value).endswith(fix)


def test_an_input_longer_than_seq_len_is_rejected():
    with pytest.raises(ValueError, match=r"17 tokens, and model\.seq_len is 16"):
        gpt().logits(tokens(1, 17))


def test_packed_documents_do_not_see_each_other():
    model, input = gpt().eval(), tokens(2, 8)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]] * 2)
    labels = input.masked_fill(positions == 0, -100)
    batch = {"input_ids": input, "labels": labels, "position_ids": positions}
    loss, records = model(batch)
    apart = torch.cat([model.logits(input[:, :5]), model.logits(input[:, 5:])], 1)
    torch.testing.assert_close(records["logits"], apart)
    assert model.num_targets(batch) == 12
    torch.testing.assert_close(
        loss, torch.nn.functional.cross_entropy(apart[:, :-1].transpose(1, 2), labels[:, 1:])
    )
