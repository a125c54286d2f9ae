"""Places of options' files, runs that a word names, and links that are rejected."""

import os
from pathlib import Path

import pytest

from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder, find_folders, place_of, weights_source


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "outputs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "outputs")
    folder = RunFolder(tmp_path / "link" / "mlp" / "1a2b").create()
    for own in (folder.export / "nested", folder.checkpoints, folder.hydra, folder.path / "images"):
        own.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    "target", ["{elsewhere}", "../../../elsewhere", "{elsewhere}/new", "/dev/null"]
)
@pytest.mark.parametrize("name", [
    "export", "export/nested/a", "run.json", "logs/launcher.log", ".hydra/config.yaml", ".hydra",
])  # fmt: skip
def test_a_link_out_of_the_folder_is_rejected(folder, tmp_path, name, target):
    place = folder.path / name
    if place.is_dir():
        os.rename(place, tmp_path / "moved")
    place.symlink_to(target.format(elsewhere=tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match=f"{name} is a link to .*remove the link"):
        folder.check_links()


@pytest.mark.parametrize("name", ["export", "logs", ".hydra", "images", "predictions"])
def test_a_linked_folder_is_not_read(folder, tmp_path, name):
    place = folder.path / name
    if place.is_dir():
        os.rename(place, tmp_path / "moved")
    folder.check_folders()
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=f"{name} is a link to .*, where nothing is read; "):
        folder.check_folders()


@pytest.mark.parametrize(
    ("settings", "target", "is_foreign"),
    [
        ({}, "{tmp}/elsewhere", True),
        ({"hooks.checkpointing.path": "checkpoints"}, "{tmp}/elsewhere", True),
        ({"hooks.checkpointing.path": "{tmp}/there"}, "{tmp}/there/mlp/1a2b", False),
        ({"hooks.mine.path": "../../../there"}, "{tmp}/there/mlp/1a2b", False),
        ({"hooks.checkpointing.path": "{tmp}/there"}, "{tmp}/there/mlp/another", True),
        ({"hooks.checkpointing.path": "{tmp}/there"}, "logs", False),
        (
            {"hooks.checkpointing.path": "{tmp}/there", "run.dir": "outputs/mlp/old"},
            "{tmp}/there/mlp/old",
            False,
        ),
    ],
)
def test_checkpoints_lead_where_the_configuration_says(
    folder, tmp_path, settings, target, is_foreign
):
    settings = {key: value.format(tmp=tmp_path) for key, value in settings.items()}
    assert not folder.has_foreign_checkpoints(settings)
    folder.checkpoints.rmdir()
    folder.checkpoints.symlink_to(target.format(tmp=tmp_path))
    assert folder.has_foreign_checkpoints(settings) == is_foreign


def test_links_within_the_folder_and_checkpoints_elsewhere_are_allowed(folder, tmp_path):
    (folder.path / "export" / "latest").symlink_to("nested")
    (folder.path / "newest.log").symlink_to(folder.log_path())
    (logs := folder.path / "wandb" / "run-1" / "logs").mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(tmp_path / "elsewhere" / "cache.log")
    folder.checkpoints.rmdir()
    folder.checkpoints.symlink_to(tmp_path / "elsewhere")
    folder.check_links()


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("x", "runs/name/id/x"),
        ("a/../x", "runs/name/id/x"),
        ("../id/x", "runs/name/id/x"),
        ("../x", "runs/name/x/name/id"),
        ("../../../x", "x/name/id"),
        ("{tmp}/x", "x/name/id"),
        ("{tmp}/runs/name/id2", "runs/name/id2/name/id"),
    ],
)
@pytest.mark.parametrize("is_relative", [True, False])
def test_a_place_that_runs_share_has_a_folder_for_each(
    tmp_path, monkeypatch, path, folder, is_relative
):
    monkeypatch.chdir(tmp_path)
    workspace = Path("runs/name/id") if is_relative else tmp_path / "runs/name/id"
    given = path.format(tmp=tmp_path)
    assert place_of(workspace, given).resolve() == tmp_path / folder
    assert place_of(None, given) == Path(given)


def test_a_word_names_the_closest_runs(tmp_path):
    for name in ("a/one", "a/two", "b/one2", "on/three"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").touch()
    expected = {"one": ["one"], "a": ["one", "two"], "on": ["three"], "o": ["one", "one2"]}
    expected |= {"b/one2": ["one2"], "x": []}
    assert {
        word: sorted(folder.name for folder in find_folders(tmp_path, word)) for word in expected
    } == expected


@pytest.mark.parametrize(
    ("name", "found"),
    [("aa", "mlp/aa"), ("bb", None), ("{root}/gpt/bb", "gpt/bb"), ("?a", None), ("gone/aa", None)],
)
def test_weights_come_from_a_path_or_from_the_one_run_of_an_id(tmp_path, name, found):
    for run in ("mlp/aa", "mlp/bb", "gpt/bb"):
        (tmp_path / run).mkdir(parents=True)
    expected = None if found is None else tmp_path / found
    assert weights_source(tmp_path, name.format(root=tmp_path)) == expected
