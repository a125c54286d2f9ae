"""Files of compiled graphs: torch unpickles them, so they must be the user's own."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from launcher.hooks.compiled_graphs import CompiledGraphsHook, cache_folder, read_own, write_own


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def linked_folder(path: Path) -> None:
    linked(path.parent)


def of_another_user(path: Path) -> None:
    try:
        os.chown(path, 12345, -1)
    except PermissionError:
        pytest.skip("only root can give a file to another user")


def damaged(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


FOREIGN = {
    "another user's": (of_another_user, "belongs to another user"),
    "others may write it": (lambda path: path.chmod(0o666), "others may write"),
    "its group may write it": (lambda path: path.chmod(0o620), "others may write"),
    "others may write its folder": (lambda path: path.parent.chmod(0o777), "others may write"),
    "a link": (linked, "Too many levels of symbolic links"),
    "a folder that is a link": (linked_folder, "Not a directory"),
    "damaged": (damaged, "is damaged"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:20]), "is damaged"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_that_another_could_have_written_is_never_given_to_torch(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change: Callable[[Path], None]
    change, reason = FOREIGN[case]
    hook = CompiledGraphsHook({"model": 1}, 0, tmp_path / "own" / "compiled")
    write_own(hook.path, b"d" * 40)
    assert read_own(hook.path) == b"d" * 40
    change(hook.path)
    given: list[bytes] = []
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", given.append)
    hook.read()
    assert hook.found.startswith("none, since ") and reason in hook.found and not given


def test_nothing_is_written_into_a_folder_of_others(tmp_path: Path) -> None:
    (folder := tmp_path / "compiled").mkdir()
    folder.chmod(0o777)
    with pytest.raises(Exception, match="others may write"):
        write_own(folder / "a.bin", b"")
    assert not list(folder.iterdir())


def test_the_name_depends_on_what_is_compiled(tmp_path: Path) -> None:
    paths = {CompiledGraphsHook(parts, rank, tmp_path).path for parts, rank in CASES}
    assert len(paths) == len(CASES)


CASES = [({"model": 1}, 0), ({"model": 2}, 0), ({"model": 1}, 1)]


def test_the_cache_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / ".cache" / "launcher" / "compiled"
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/me")
    assert cache_folder() == Path("/scratch/me/launcher/compiled")
