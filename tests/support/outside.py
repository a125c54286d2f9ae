"""A working directory outside of the repository."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def outside_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt records git's state, which takes long in a large repository."""
    monkeypatch.chdir(tmp_path)
