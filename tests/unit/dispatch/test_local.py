"""dispatch=local, without starting ranks."""

import tempfile

import pytest

from launcher.config.run_config import RunConfig
from launcher.dispatch import local
from launcher.dispatch.local import LocalDispatch, private_folder
from launcher.errors import ConfigError


def test_left_over_variables_are_rejected_before_anything_is_built(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    tree = {"strategy": {}, "job": {"_target_": "never.built"}, "device": "cpu"}
    config = RunConfig(tree, tree)
    with pytest.raises(ConfigError, match="WORLD_SIZE=2"):
        LocalDispatch().run(config)


def test_a_temporary_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"^TMPDIR=.*cannot be written"), private_folder():
        pass


def test_a_temporary_folder_without_room(tmp_path, monkeypatch):
    """A rank could not report its end, so the run would have failed once it was trained."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with private_folder() as folder:
        assert folder.is_dir()
    monkeypatch.setattr(local, "ROOM", 1 << 70)
    with pytest.raises(ConfigError, match=r"^TMPDIR=.* has only .*B left"), private_folder():
        pass
    assert list(tmp_path.iterdir()) == []
