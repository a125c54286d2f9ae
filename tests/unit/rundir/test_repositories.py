"""The repositories of imported files: the current folder's, and others."""

from pathlib import Path

from launcher.rundir.repositories import other_repositories, top_of
from support.git import commit


def written(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("one = 1\n")
    return str(path)


def test_each_other_repository_is_found_once(tmp_path, monkeypatch):
    own = written(tmp_path / "project" / "package" / "own.py")
    inner = written(tmp_path / "library" / "vendored" / "inner.py")
    commit(tmp_path / "library" / "vendored")
    files = [written(tmp_path / "library" / "src" / name) for name in ("a.py", "deep/b.py")]
    commit(tmp_path / "library")
    alone = written(tmp_path / "alone" / "c.py")
    everything = [own, *files, inner, alone]
    here, library = tmp_path / "project", tmp_path / "library"
    monkeypatch.chdir(here)
    assert other_repositories(everything) == [library]
    commit(here)
    assert other_repositories(everything) == [library]
    assert top_of(tmp_path / "alone") is None
    (tmp_path / "link").symlink_to(library / "src")
    assert other_repositories([str(tmp_path / "link" / "a.py")]) == [library]
