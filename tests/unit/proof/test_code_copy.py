"""The copy of a commit's code, and what is imported from elsewhere."""

import json
import os

import pytest

from launcher.errors import ConfigError
from launcher.proof.code_copy import copy_commit, working_tree
from support.git import commit, git


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with a package in `src/`, a generated module, and options."""
    root = tmp_path / "project"
    for name, text in {
        "src/pkg/__init__.py": "",
        "src/pkg/model.py": "old = True\n",
        "conf/model/net.yaml": "_target_: pkg.model.Net\n",
        ".gitignore": "_version.py\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    commit(root)
    (root / "src/pkg/_version.py").write_text("version = 1\n")
    (root / "src/pkg/model.py").write_text("old = False\n")
    monkeypatch.chdir(root)
    return root


def test_a_copy_has_the_files_of_the_commit_and_generated_modules(project, tmp_path):
    copy = copy_commit(working_tree(), "HEAD", tmp_path / "copy")
    assert (copy.root / "src/pkg/model.py").read_text() == "old = True\n"
    assert (copy.root / "src/pkg/_version.py").read_text() == "version = 1\n"
    assert (project / "src/pkg/model.py").read_text() == "old = False\n"
    assert copy.environment()["PYTHONPATH"].split(os.pathsep)[:2] == [
        str(copy.root),
        str(copy.root / "src"),
    ]
    model = project / "src/pkg/model.py"
    assert copy.version_of(model) == copy.root / "src/pkg/model.py"
    assert copy.version_of(tmp_path) == tmp_path and working_tree().version_of(model) == model
    (project / "new.py").touch()
    assert copy.version_of(project / "new.py") == project / "new.py"
    (project / "new.py").unlink()
    # Git finds no index or worktree of ours.
    assert git(project, "status", "--porcelain") == b" M src/pkg/model.py\n"
    assert git(project, "worktree", "list").count(b"\n") == 1


def test_a_copy_has_the_submodules_of_its_commit(project, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    (library / "lib.py").write_text("number = 1\n")
    commit(library)
    allowed = ("-c", "protocol.file.allow=always")
    git(project, *allowed, "submodule", "add", "-q", str(library), "lib")
    git(project, "commit", "-qam", "with a library")
    then = git(project, "rev-parse", "HEAD").decode().strip()
    (project / "lib/lib.py").write_text("number = 2\n")
    git(project / "lib", "commit", "-qam", "two")
    git(project, "commit", "-qam", "a newer library")
    copy = copy_commit(working_tree(), then, tmp_path / "copy")
    assert (copy.root / "lib/lib.py").read_text() == "number = 1\n"


def test_a_commit_that_git_cannot_read_is_a_message(project, tmp_path):
    with pytest.raises(ConfigError, match="fetch its history"):
        copy_commit(working_tree(), "0" * 40, tmp_path / "copy")


def test_folders_on_the_path_and_of_editable_installs_are_those_of_the_copy(
    project, tmp_path, monkeypatch
):
    for name in ("tools/one", "tools/two/src"):
        (project / name / "some").mkdir(parents=True)
        (project / name / "some/__init__.py").write_text("")
    commit(project)
    monkeypatch.syspath_prepend(project / "tools/one")
    site = tmp_path / "site"
    (site / "two-1.dist-info").mkdir(parents=True)
    (site / "two-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: two\nVersion: 1\n")
    origin = {"url": (project / "tools/two").as_uri(), "dir_info": {"editable": True}}
    (site / "two-1.dist-info/direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(site)
    copy = copy_commit(working_tree(), "HEAD", tmp_path / "copy")
    paths = copy.environment()["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == str(copy.root)
    assert {str(copy.root / "tools/one"), str(copy.root / "tools/two/src")} <= set(paths)


def test_what_is_imported_from_elsewhere_is_named(project, tmp_path):
    copy = copy_commit(working_tree(), "HEAD", tmp_path / "copy")
    site = tmp_path / "lib/site-packages"
    own = {"pkg": str(copy.root / "src/pkg/__init__.py"), "os": os.__file__}
    assert copy.list_foreign(own) == []
    (line,) = copy.list_foreign(
        {"pkg.model": str(site / "pkg/model.py"), "torch": str(site / "torch/__init__.py")}
    )
    assert line.startswith(f"both codes import pkg.model from one place ({site}")
    (line,) = copy.list_foreign({"scratch": str(project / "scratch.py")})
    assert line.startswith("both codes import scratch from one place")
    venv = project / ".venv/lib/site-packages/torch/__init__.py"
    assert copy.list_foreign({"torch": str(venv), "__main__": str(project / "job.py")}) == []
    assert working_tree().list_foreign({"pkg.model": str(site / "pkg/model.py")}) == []


def test_a_folder_without_a_repository_is_a_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="not in a git repository"):
        working_tree()
