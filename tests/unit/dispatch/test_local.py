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


@pytest.mark.parametrize(
    ("nproc", "started", "is_rejected"),
    [
        *((2, "1", True), (1, "2", True), (4, "2", True)),
        *((2, "2", False), ("auto", "2", False), (2, None, False)),
    ],
)
def test_ranks_that_torchrun_or_srun_has_started_are_as_many_as_requested(
    monkeypatch, nproc, started, is_rejected
):
    ranks = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    for name, value in {**ranks, "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if started is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", started)
    monkeypatch.setattr("launcher.dispatch.local.execute_job", lambda config: "trained")
    tree = {"strategy": {}, "job": {}, "device": "cpu", "dispatch": {}}
    config = RunConfig(tree, tree)
    if is_rejected:
        with pytest.raises(ConfigError, match=rf"^dispatch.nproc={nproc}: .*={started}\)"):
            LocalDispatch(nproc).run(config)
    else:
        assert LocalDispatch(nproc).run(config) == "trained"


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
