"""dispatch=local, without starting ranks."""

import pytest
from omegaconf import OmegaConf

from launcher.dispatch.local import LocalDispatch
from launcher.errors import ConfigError


def test_left_over_variables_are_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = OmegaConf.create({"strategy": {}, "job": {"_target_": "never.built"}, "device": "cpu"})
    with pytest.raises(ConfigError, match="WORLD_SIZE=2"):
        LocalDispatch().run(config)
