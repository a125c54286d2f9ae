"""dispatch=local, without starting ranks."""

import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launcher.config.run_config import RunConfig
from launcher.dispatch.local import OWNER, LocalDispatch, private_folder
from launcher.errors import ConfigError
from launcher.rundir.holder import Holder


def test_left_over_variables_are_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    tree = {"strategy": {}, "job": {"_target_": "never.built"}, "device": "cpu"}
    config = RunConfig(tree, tree)
    with pytest.raises(ConfigError, match="WORLD_SIZE=2"):
        LocalDispatch().run(config)


def test_folders_of_killed_commands_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    me = Holder.current()
    owners = {
        "dead": replace(me, started="1"),
        "alive": me,
        "elsewhere": replace(me, host="node7", started="1"),
    }
    for name, owner in owners.items():
        (tmp_path / f"launcher-{name}").mkdir()
        (tmp_path / f"launcher-{name}" / OWNER).write_text(json.dumps(asdict(owner)))
    (tmp_path / "launcher-being-made").mkdir()
    with private_folder() as folder:
        left = {path.name for path in tmp_path.iterdir()} - {folder.name}
    assert left == {"launcher-alive", "launcher-elsewhere", "launcher-being-made"}
    assert not folder.exists()


def test_a_temporary_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"^TMPDIR=.*cannot be written"), private_folder():
        pass
