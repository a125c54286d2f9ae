"""The names that a user's own code imports, apart from the package itself."""

import re
from importlib import metadata

import pytest
import torch

import launcher
from launcher import api, distributed, utils
from launcher.hooks.records import key_average
from support.paths import ROOT


def test_names_of_the_package_are_those_of_its_api():
    assert dir(launcher) == sorted(name for name in vars(api) if not name.startswith("_"))
    assert "torch" not in dir(launcher)
    for name in dir(launcher):
        assert getattr(launcher, name) is getattr(api, name)


def test_each_public_name_is_on_the_api_page():
    page = (ROOT / "docs" / "api.md").read_text()
    assert [name for name in dir(launcher) if not re.search(rf"\b{name}\b", page)] == []


def test_version_is_that_of_the_distribution():
    assert launcher.__version__ == metadata.version("torch-launcher")


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        launcher.nothing  # noqa: B018


@pytest.mark.parametrize(
    "name",
    ["EmaHook", "EMAHook", "CudaMaxMemoryHook", "ImageFileLoggerHook", "WandbHook", "key_average"],
)
def test_trainloops_names(name):
    assert callable(getattr(launcher, name)) and utils.key_average is key_average


def test_distributed_join_and_leave_work_for_one_process(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    me = distributed.Ranks.from_env()
    assert not me.is_distributed and me.is_main
    assert me.device.type in ("cpu", "cuda", "mps")
    distributed.join(torch.device("cpu"))
    try:
        assert torch.distributed.is_initialized()
        assert (distributed.rank(), distributed.world_size(), distributed.broadcast("x")) == (
            0,
            1,
            "x",
        )
    finally:
        distributed.leave()
    assert not torch.distributed.is_initialized()
    assert distributed.Ranks(rank=1, world_size=2).is_distributed
