import pytest

from support.outside import outside_of_the_repository
from support.scripted_slurm import ScriptedSlurm

__all__ = ["outside_of_the_repository"]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """This process is in job 6."""
    slurm = ScriptedSlurm(tmp_path / "slurm")
    slurm.install(monkeypatch)
    return slurm
