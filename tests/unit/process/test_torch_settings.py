import pytest
import torch
from torch.backends import cudnn

from launcher.process.torch_settings import restoring_settings


def settings():
    return (
        torch.get_default_dtype(),
        torch.get_deterministic_debug_mode(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        cudnn.benchmark,
        cudnn.allow_tf32,
    )


def change(threads):
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("medium")
    cudnn.benchmark = not cudnn.benchmark
    cudnn.allow_tf32 = not cudnn.allow_tf32


def test_each_setting_is_restored_however_the_run_ends():
    before = settings()
    with restoring_settings():
        change(before[2] + 1)
        changed = settings()
    assert settings() == before
    assert all(old != new for old, new in zip(before, changed, strict=True))
    with pytest.raises(SystemExit), restoring_settings():
        change(before[2] + 1)
        raise SystemExit(3)
    assert settings() == before
