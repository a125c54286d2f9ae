"""Which DeepSpeed is accepted."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from launcher.errors import ConfigError
from launcher.strategies.deepspeed import engine_setup


def test_the_extra_installs_the_tested_range():
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["deepspeed"]
    assert [each for each in extra if each.startswith("deepspeed")] == [
        f"deepspeed{engine_setup.TESTED}"
    ]


@pytest.mark.parametrize("version", ["0.9.5", "0.17.6", "0.20.0", "0.20.1", "1.0.0"])
def test_a_version_that_is_not_tested_is_rejected(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(ConfigError, match=f"DeepSpeed {version} .*deepspeed{engine_setup.TESTED}"):
        engine_setup.require()
