"""The names that a user's own code imports, apart from the package itself."""

import pytest
import torch

import launcher
from launcher import distributed, utils
from launcher.hooks.records import key_average


def test_trainloops_utilities() -> None:
    assert utils.key_average is key_average


@pytest.mark.parametrize("name", ["EmaHook", "EMAHook", "CudaMaxMemoryHook", "ImageFileLoggerHook", "key_average"])
def test_trainloops_names(name: str) -> None:
    assert callable(getattr(launcher, name))


def test_one_process_joins_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    me = distributed.Ranks.from_env()
    assert not me.is_distributed and me.is_main
    assert me.device.type in ("cpu", "cuda", "mps")
    distributed.join(torch.device("cpu"))
    try:
        assert torch.distributed.is_initialized()
        assert (distributed.rank(), distributed.world_size(), distributed.broadcast("x")) == (0, 1, "x")
    finally:
        distributed.leave()
    assert not torch.distributed.is_initialized()
    assert distributed.Ranks(rank=1, world_size=2).is_distributed
