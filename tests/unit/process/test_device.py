import pytest
import torch

from launcher.errors import ConfigError
from launcher.process.device import device_type


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_is_one_sentence():
    with pytest.raises(ConfigError, match=r"^device=cuda: .*device=auto or one of: .*cpu"):
        device_type("cuda")
