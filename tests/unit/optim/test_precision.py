import pytest
import torch

from launcher.errors import ConfigError
from launcher.optim.precision import Precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "dtype", "scaled"),
    [
        ("fp32", torch.float32, False),
        ("bf16", torch.bfloat16, False),
        ("fp16", torch.float16, True),
    ],
)
def test_formats(name, dtype, scaled):
    precision = Precision(name, init_scale=64.0)  # type: ignore[arg-type]
    precision.setup(CPU)
    with precision.autocast(CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    scaler = precision.scaler(CPU)
    assert scaler.is_enabled() == scaled == precision.needs_scaler
    assert not scaled or scaler.get_scale() == 64.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU may have it")
def test_tf32_needs_a_gpu():
    with pytest.raises(ConfigError, match="precision=tf32"):
        Precision("tf32").setup(CPU)
