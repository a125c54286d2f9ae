import pytest
import torch

from launcher.train.targets import weigh


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_factor_is_not_rounded_to_16_bits(dtype):
    weight = torch.tensor(1 / 3, dtype=torch.float64)
    weighed = weigh({"loss": torch.ones((), dtype=dtype)}, weight)["loss"]
    assert weighed.item() == pytest.approx(1 / 3, rel=1e-7)
