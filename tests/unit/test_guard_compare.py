"""`launcher.guard.compare`, before it trains."""

import pytest

from launcher import guard
from launcher.errors import ConfigError
from support.git import commit


def test_a_function_that_another_commit_cannot_have_is_a_message(tmp_path, monkeypatch):
    (tmp_path / "file.py").write_text("")
    commit(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="should be a function at the top of a module"):
        guard.compare(lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match="is not in "):
        guard.compare(commit)  # type: ignore[arg-type]
