"""`python -m launcher init`; that the project trains and passes its own tests is in
end_to_end/test_init.py."""

import os
from pathlib import Path

import pytest

from launcher.cli.init import main, make_project
from launcher.cli.main import with_own_folder
from launcher.errors import ConfigError


def test_the_files_are_named_after_the_folder(tmp_path, capsys):
    main([str(tmp_path / "My-Net")])
    assert "python -m launcher experiment=first" in capsys.readouterr().out
    project = tmp_path / "My-Net"
    assert (project / ".gitignore").is_file() and not list(project.rglob("*.in"))
    assert (project / "conf/model/net.yaml").read_text().splitlines()[:2] == [
        "_target_: my_net.model.Net",
        "num_features: ${data.num_features}",
    ]


def test_an_empty_folder_that_exists_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    Path("my_net").mkdir()
    assert make_project(Path("my_net")) == "my_net" and Path("my_net/README.md").is_file()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("torch", "there is an installed package torch; choose another name."),
        ("json", "there is an installed package json; choose another name."),
        ("3d", "a package cannot be called 3d; e.g. init my_project."),
        ("class", "a package cannot be called class; e.g. init my_project."),
        ("full", "it exists and is not an empty folder; choose another name."),
        ("file", "it exists and is not an empty folder; choose another name."),
        ("file/sub_project", "cannot be written: Not a directory."),
    ],
)
def test_a_folder_that_is_rejected(tmp_path, name, sentence):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.py").touch()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError) as error:
        make_project(tmp_path / name)
    assert str(error.value) == f"init {tmp_path / name}: {sentence}"
    assert sorted(tmp_path.rglob("*")) == before


def test_the_current_folders_conf_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert with_own_folder(["seed=1"]) == ["seed=1"]
    os.makedirs("conf/something")
    assert with_own_folder(["seed=1"]) == ["seed=1"], "a conf/ for another program"
    os.makedirs("conf/model")
    assert with_own_folder(["seed=1"]) == ["seed=1", "--config-dir", "conf"]
    for named in (["--config-dir=other"], ["--config-dir", "other"], ["-cd", "other"]):
        assert with_own_folder(named) == named
    Path("conf/config.yaml").touch()
    assert with_own_folder(["seed=1"]) == ["seed=1", "--config-dir", "conf"], "its own defaults"
    os.makedirs("src/launcher")
    Path("src/launcher/__init__.py").touch()
    assert with_own_folder(["seed=1"]) == ["seed=1"], "a checkout of Launcher"
