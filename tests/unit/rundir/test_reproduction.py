"""Stored code of a run: `git apply` restores it, and it has no secret."""

import os
import signal
import threading
import time
from contextlib import suppress

import pytest

from launcher.process import signals
from launcher.rundir import reproduction
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
from launcher.rundir.reproduction import CODE, ENVIRONMENT, code_diff, environment, keep, parse_code
from support.git import commit, git


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "project"
    (root / "package").mkdir(parents=True)
    (root / "package/model.py").write_text("size = 1\n")
    (root / "data.bin").write_bytes(bytes(range(256)))
    commit(root)
    return root


def test_changes_and_new_sources_are_restored_by_git_apply(repository, tmp_path):
    (repository / "package/model.py").write_text("size = 2  # ö")
    (repository / "data.bin").write_bytes(bytes(range(255, -1, -1)))
    (repository / "package/new file.py").write_text("x = 1\n")
    (repository / "conf").mkdir()
    (repository / "conf/größe.yaml").write_text("a: 1\n")
    (repository / "notes.txt").write_text("is no source")
    (repository / "outputs").mkdir()
    (repository / "outputs/config.yaml").write_text("of a run: 1\n")
    status = git(repository, "status", "--porcelain")
    code = parse_code(code_diff(repository / "package", repository / "outputs"))
    assert git(repository, "status", "--porcelain") == status, "the index is as it was"
    assert code.left_out == []
    assert code.commit == git(repository, "rev-parse", "HEAD").decode().strip()
    git(repository, "worktree", "add", "-q", "--detach", str(tmp_path / "copy"), code.commit)
    git(tmp_path / "copy", "apply", "-", input=code.diff)
    for name in ("package/model.py", "data.bin", "package/new file.py", "conf/größe.yaml"):
        assert (tmp_path / "copy" / name).read_bytes() == (repository / name).read_bytes()
    assert not (tmp_path / "copy/notes.txt").exists() and not (tmp_path / "copy/outputs").exists()


@pytest.mark.parametrize("tracked", [False, True])
def test_files_that_are_named_like_secrets_are_never_kept(repository, tracked):
    names = [
        ".env", "api_key.py", "conf/credentials.yaml", "deploy.pem", "id_rsa", "my.env",
        "private.cfg", "secrets.yaml",
    ]  # fmt: skip
    (repository / "conf").mkdir()
    for name in names:
        (repository / name).write_text("one\n")
    if tracked:
        commit(repository)
        for name in names:
            (repository / name).write_text("hunter2hunter2\n")
    stored = code_diff(repository, repository / "outputs")
    assert b"hunter2" not in stored and b"one" not in stored
    left_out = [f"{name} (looks like a secret)" for name in names]
    assert sorted(parse_code(stored).left_out) == (left_out if tracked else [])


SECRETS = [
    ('api_key = "0123456789abcdef"', True),
    ("password: 'hunter2hunter2'", True),
    ("wandb:\n  api_key: 0123456789abcdef0123", True),
    ('{"token": "0123456789abcdef"}', True),
    ("-----BEGIN OPENSSH PRIVATE KEY-----", True),
    ("AKIA0123456789ABCDEF", True),
    ("hf_" + "a" * 34, True),
    ("url = 'https://user:pa55word@host/x'", True),
    (f"wandb.login(key='{'0123456789' * 4}')", True),
    (f'{{"Authorization": "Bearer {"a1" * 12}"}}', True),
    ("jwt = 'eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl'", True),
    ("post('https://hooks.slack.com/services/T0/B0/x')", True),
    ("weights.pop(key='layers.0.weight')", False),
    ("Bearer of the token", False),
    ("api_key = os.environ['KEY']", False),
    ("api_key: ${oc.env:WANDB_API_KEY}", False),
    ("token = tokens[0]", False),
    ("num_tokens: 12", False),
]


def test_files_with_a_secret_are_left_out_and_named(repository):
    for number, (text, _) in enumerate(SECRETS):
        (repository / f"settings_{number:02}.py").write_text(f"{text}\n")
    (repository / "package/model.py").write_text("size = 3\n")
    code = parse_code(code_diff(repository, repository / "outputs"))
    assert sorted(code.left_out) == [
        f"settings_{number:02}.py (looks like a secret)"
        for number, (_, is_secret) in enumerate(SECRETS)
        if is_secret
    ]
    assert b"size = 3" in code.diff
    for text, is_secret in SECRETS:
        assert is_secret or text.encode() in code.diff


def test_code_diff_is_bounded(repository, monkeypatch):
    monkeypatch.setattr(reproduction, "MAX_FILE_BYTES", 1000)
    (repository / "package/model.py").write_text("x\n" * 1000)
    (repository / "large.py").write_text("x" * 2000)
    (repository / "small.py").write_text("y = 1\n")
    code = parse_code(code_diff(repository, repository / "outputs"))
    assert code.left_out == ["package/model.py (too large)"]
    assert b"y = 1" in code.diff and b"large.py" not in code.diff


def test_without_a_repository_or_commit_nothing_is_kept(tmp_path):
    assert code_diff(tmp_path, tmp_path) == b""
    git(tmp_path, "init", "-q")
    assert code_diff(tmp_path, tmp_path) == b"" and parse_code(b"").commit is None


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run's folder, with the files of an attempt before."""
    monkeypatch.chdir(tmp_path)
    (folder := tmp_path / "run").mkdir()
    for name in (CODE, ENVIRONMENT, "code-1.diff"):
        (folder / name).write_text("of other code")
    return folder


def test_files_of_the_first_start_are_kept(folder, tmp_path):
    assert keep(folder, tmp_path, is_new=False, is_ours=lambda: True) is None
    assert (folder / CODE).read_text() == "of other code"
    # A thread of another test may end meanwhile.
    threads = set(threading.enumerate())
    wait = keep(folder, tmp_path, is_new=True, is_ours=lambda: True)
    # Data workers are forked meanwhile.
    assert wait is not None and not set(threading.enumerate()) - threads
    wait()
    # The test's own files are of another repository.
    names = sorted(name for name in os.listdir(folder) if not name.startswith("code-"))
    assert names == [CODE, ENVIRONMENT]
    text = environment()
    assert text.startswith("# CPython 3.") and "\ntorch==" in text
    assert text == (folder / ENVIRONMENT).read_text() and not (folder / CODE).read_bytes()


def test_a_run_that_another_attempt_has_taken_over_gets_no_file(folder, tmp_path):
    """The process outlives a killed run, and the next attempt may be on it already."""
    lock = RunLock(RunFolder(folder))
    lock.acquire()
    keep(folder, tmp_path, is_new=True, is_ours=lambda: False)()
    assert os.listdir(folder) == ["run.lock"]
    keep(folder, tmp_path, is_new=True, is_ours=lock.is_held)()
    assert {CODE, ENVIRONMENT} < {*os.listdir(folder)}
    lock.release()


def test_without_a_child_training_waits_for_the_files(folder, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(reproduction, "_fork", lambda: None)
    assert keep(folder, tmp_path, is_new=True, is_ours=lambda: True) is None
    assert (folder / ENVIRONMENT).read_text() == environment()
    monkeypatch.setattr(reproduction, "_write", lambda *arguments: _fail())
    assert keep(folder, tmp_path, is_new=True, is_ours=lambda: True) is None
    assert "code.diff and environment.txt are not complete: a distribution without" in caplog.text


def _fail():
    raise ValueError("a distribution without a name")


@pytest.mark.parametrize(
    ("work", "limit", "message"),
    [
        pytest.param(_fail, 30.0, "their process ended with exit code 1", id="fails"),
        pytest.param(
            lambda: os.kill(os.getpid(), signal.SIGKILL), 30.0, "was killed by signal 9", id="dies"
        ),
        pytest.param(lambda: time.sleep(60), 0.0, "are not complete after 0 s", id="is slow"),
    ],
)
def test_files_that_are_not_complete_are_reported(
    folder, tmp_path, monkeypatch, caplog, work, limit, message
):
    """Nothing is left of an attempt before, and the next attempt of the run writes them."""
    forked = []
    monkeypatch.setattr(reproduction, "_write", lambda *arguments: work())
    monkeypatch.setattr(reproduction, "WAIT", limit)
    monkeypatch.setattr(os, "fork", lambda fork=os.fork: forked.append(fork()) or forked[-1])
    wait = keep(folder, tmp_path, is_new=True, is_ours=lambda: True)
    try:
        wait()
        wait()
        assert [record.message for record in caplog.records if message in record.message]
        assert not os.listdir(folder)
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(forked[0], signal.SIGKILL)
            os.waitpid(forked[0], 0)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    keep(folder, tmp_path, is_new=False, is_ours=lambda: True)()
    assert (folder / ENVIRONMENT).exists()


def test_a_signal_to_the_group_leaves_the_files_complete(folder, tmp_path, monkeypatch):
    def signalled(folder, *arguments):
        for signum in signals.HANDLED:
            os.kill(os.getpid(), signum)
        (folder / ENVIRONMENT).write_text("complete")

    monkeypatch.setattr(reproduction, "_write", signalled)
    keep(folder, tmp_path, is_new=True, is_ours=lambda: True)()
    assert (folder / ENVIRONMENT).read_text() == "complete"


def test_the_child_has_none_of_the_descriptors_of_training(folder, tmp_path, monkeypatch):
    """A socket of a rank that was killed closes, so that the other ranks do not wait for it."""
    readable, writable = os.pipe()

    def look(folder, *arguments):
        names = os.listdir("/proc/self/fd")
        (folder / ENVIRONMENT).write_text(" ".join(sorted(names, key=int)))

    monkeypatch.setattr(reproduction, "_write", look)
    keep(folder, tmp_path, is_new=True, is_ours=lambda: True)()
    os.close(readable)
    os.close(writable)
    # The last is of the folder that was listed.
    assert (folder / ENVIRONMENT).read_text() == "0 1 2 3"
