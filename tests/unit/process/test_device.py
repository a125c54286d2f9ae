import pytest
import torch

from launcher.errors import ConfigError
from launcher.process.device import device_type, get_device


def test_auto_is_what_is_there() -> None:
    best = (
        "cuda"
        if torch.cuda.is_available()
        else "mps"
        if torch.backends.mps.is_available()
        else "cpu"
    )
    assert device_type("auto") == best
    assert get_device(0, "cpu") == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^device=cuda: .*device=auto or one of: .*cpu"):
        device_type("cuda")
