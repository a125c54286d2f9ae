"""A working directory outside of the repository."""

import pytest


@pytest.fixture(autouse=True)
def outside_of_the_repository(tmp_path, monkeypatch):
    """Each attempt records git's state, and there is none here: git need not say so each time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launcher.rundir.record.code_that_trains", lambda code: None)
