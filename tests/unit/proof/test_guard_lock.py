"""The file `guard.lock`."""

import pytest

from launcher.errors import ConfigError
from launcher.proof.guard_lock import GuardLock, read_lock


def test_a_meant_change_is_one_changed_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = GuardLock(tmp_path, is_written=True)
    lock.lines = {name: {"here": "20 steps: 12"} for name in ("b", "a")}
    lock.write()
    before = (tmp_path / "guard.lock").read_text().splitlines()
    assert list(read_lock()) == ["a", "b"]
    other = GuardLock(tmp_path, is_written=True)
    other.lines["a"]["here"] = "20 steps: 34"
    other.write()
    after = (tmp_path / "guard.lock").read_text().splitlines()
    assert len(set(after) - set(before)) == 1 and len(after) == len(before)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_file_that_is_not_of_guard_is_a_message(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guard.lock").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"guard\.lock: .*remove it, and use --write"):
        read_lock()
