"""The file `guard.lock`."""

import json

import pytest

from launcher.errors import ConfigError
from launcher.proof.guard_lock import GuardLock, read_lock

ENTRY = {"steps": 3, "digest": "12", "losses": ["0x1.0p+0"]}


def test_a_meant_change_is_one_changed_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = GuardLock(tmp_path, is_written=True)
    lock.trained = {name: {"here": ENTRY} for name in ("b", "a")}
    lock.write()
    before = (tmp_path / "guard.lock").read_text().splitlines()
    assert list(read_lock()) == ["a", "b"]
    other = GuardLock(tmp_path, is_written=True)
    other.trained = {"a": {"there": ENTRY, "here": {**ENTRY, "digest": "34"}}}
    other.write()
    after = (tmp_path / "guard.lock").read_text().splitlines()
    assert json.loads("".join(after))["b"] == {"here": ENTRY}
    # The line of the machine, and one for another machine.
    assert len(set(after) - set(before)) == 2 and len(after) == len(before) + 1


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_file_that_is_not_of_guard_is_a_message(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guard.lock").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"guard\.lock: .*remove it, and use --write"):
        read_lock()
