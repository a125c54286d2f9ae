"""The user's key, and the signatures that it makes."""

import json
import logging
import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.rundir import signing
from launcher.rundir.signing import is_own, is_own_record, is_own_text, key_file, sign, sign_text


@pytest.fixture
def key(tmp_path, monkeypatch):
    file = tmp_path / "deep" / "key"
    monkeypatch.setenv("LAUNCHER_KEY", str(file))
    return file


def test_the_place_of_the_key(tmp_path, monkeypatch):
    monkeypatch.delenv("LAUNCHER_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert key_file() == tmp_path / ".config" / "launcher" / "key"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert key_file() == tmp_path / "xdg" / "launcher" / "key"
    monkeypatch.setenv("LAUNCHER_KEY", "~/mine")
    assert key_file() == tmp_path / "mine"


def test_the_key_is_made_once_and_only_its_owner_can_read_it(key):
    assert not is_own_text("a: 1\n") and not key.exists(), "nothing is made to check"
    before = os.umask(0)
    try:
        text = sign_text("a: 1\n")
    finally:
        os.umask(before)
    content = key.read_bytes()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and len(content) == 64
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    assert is_own_text(text) and sign_text("a: 1\n") == text and key.read_bytes() == content


def test_processes_that_start_at_the_same_time_have_one_key(key):
    code = "from launcher.rundir.signing import sign; print(sign('k', 1))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)
    ]
    outputs = {process.communicate()[0].decode().strip() for process in processes}
    assert outputs == {sign("k", 1)}
    assert [path.name for path in key.parent.iterdir()] == ["key"]


@pytest.mark.parametrize("problem", ["readable by others", "short", "a folder", "in a file"])
def test_a_key_that_cannot_be_used_is_a_note(key, problem, caplog):
    text = sign_text("a: 1\n")
    key.unlink()
    if problem == "a folder":
        key.mkdir()
    elif problem == "in a file":
        key.parent.rmdir()
        key.parent.touch()
    else:
        key.write_text("x" * (20 if problem == "short" else 64))
        key.chmod(0o644 if problem == "readable by others" else 0o600)
    signing._note.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert sign_text("a: 1\n") == "a: 1\n" and sign("k", 1) is None
    assert caplog.text.count("The run is not signed") == 1 and str(key) in caplog.text
    assert not is_own_text(text) and not is_own_text("a: 1\n")


@pytest.mark.parametrize("mode", [0o640, 0o440, 0o660, 0o620, 0o604])
def test_a_key_that_the_variable_names_may_be_read_by_its_group(key, monkeypatch, mode):
    text = sign_text("a: 1\n")
    key.chmod(mode)
    assert is_own_text(text) == (mode in (0o640, 0o440))
    # A user's own key stays secret.
    home = key.parent / "launcher" / "key"
    home.parent.mkdir()
    key.rename(home)
    monkeypatch.delenv("LAUNCHER_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(key.parent))
    assert not is_own_text(text)
    home.chmod(0o600)
    assert is_own_text(text)


@pytest.mark.parametrize("change", [
    lambda text: text.replace("1", "2"), lambda text: text + "b: 2\n", lambda text: text + "\n",
    lambda text: "b: 2\n" + text, lambda text: text.replace(signing.SIGNATURE_PREFIX, ""),
    lambda text: text[:-10] + "\n", lambda text: text.replace("\n", "\r\n"),
    lambda text: text[:-2] + "é\n",
])  # fmt: skip
def test_a_text_that_was_changed_is_not_ones_own(key, change):
    text = sign_text("a: 1\n")
    assert is_own_text(text) and not is_own_text(change(text))


def test_a_signature_of_another_key_or_another_kind_does_not_count(key, monkeypatch):
    own = sign("k", {"a": 1})
    assert is_own("k", {"a": 1}, own) and not is_own("other", {"a": 1}, own)
    assert not any(is_own("k", {"a": 1}, text) for text in (None, "", 3, [own]))
    monkeypatch.setenv("LAUNCHER_KEY", str(key.with_name("other")))
    assert not is_own("k", {"a": 1}, own)
    assert sign("k", {"a": 1}) != own


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**62) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers() | st.text(), inner),
    max_leaves=6,
)


@settings(max_examples=30)
@given(value=JSON)
def test_what_is_read_from_a_file_is_what_was_signed(value):
    record = {"config": value, "cwd": "/x", "job": 1}
    record["signature"] = signing.record_signature("submission.json", record)
    read = json.loads(json.dumps(record, default=str))
    assert is_own_record("submission.json", read)
    assert is_own_record("submission.json", {**read, "job": 2}), "it names no code"
    assert not is_own_record("submission.json", {**read, "cwd": "/y"})
