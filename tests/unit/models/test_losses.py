import pytest
import torch
from torch.nn import functional as F

from launcher.models.supervised import class_loss

LOSSES: dict[str, dict[str, float]] = {
    "weighted": {},
    "smoothed": {"label_smoothing": 0.2},
    "focal": {"gamma": 1.5},
}


def scores(size: int = 12, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(size, classes, generator=generator, dtype=torch.float64)
    target = torch.randint(classes, (size,), generator=generator)
    target[::5] = -100
    return logits, target, torch.rand(classes, generator=generator, dtype=torch.float64) + 0.1


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
@pytest.mark.parametrize("is_weighted", [True, False])
def test_cross_entropy_is_torchs_but_for_the_divisor(label_smoothing, is_weighted):
    logits, target, weights = scores()
    chosen = weights if is_weighted else None
    expected = F.cross_entropy(logits, target, chosen, label_smoothing=label_smoothing)
    counted = target[target != -100]
    divisor = weights[counted].sum() / len(counted) if is_weighted else 1.0
    torch.testing.assert_close(
        class_loss(logits, target, chosen, label_smoothing), expected * divisor
    )


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_focal_is_its_formula(gamma):
    logits, target, weights = scores()
    counted = target != -100
    p = logits.softmax(-1)[counted].gather(1, target[counted, None]).squeeze(1)
    expected = (weights[target[counted]] * (1 - p) ** gamma * -p.log()).mean()
    torch.testing.assert_close(class_loss(logits, target, weights, gamma=gamma), expected)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_has_a_finite_gradient_where_the_prediction_is_certain(gamma):
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    class_loss(logits, torch.tensor([0]), gamma=gamma).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_mean_does_not_depend_on_how_the_batch_is_divided(name):
    logits, target, weights = scores()
    whole = class_loss(logits, target, weights, **LOSSES[name])
    parts = [slice(0, 5), slice(5, 6), slice(6, 12)]
    counts = torch.stack([(target[part] != -100).sum() for part in parts])
    losses = torch.stack(
        [class_loss(logits[part], target[part], weights, **LOSSES[name]) for part in parts]
    )
    torch.testing.assert_close((losses * counts).sum() / counts.sum(), whole)


@pytest.mark.parametrize("name", LOSSES)
def test_batch_without_targets_has_the_loss_0(name):
    logits, target, weights = scores()
    logits.requires_grad_()
    loss = class_loss(logits, torch.full_like(target, -100), weights, **LOSSES[name])
    loss.backward()
    assert loss.item() == 0 and logits.grad is not None and not logits.grad.any()
