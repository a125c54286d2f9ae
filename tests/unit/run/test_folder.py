import os

import pytest

from launcher.errors import ConfigError
from launcher.run.folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "outputs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "outputs")
    folder = RunFolder(tmp_path / "link" / "mlp" / "1a2b").create()
    for own in (folder.export / "nested", folder.checkpoints, folder.hydra, folder.path / "images"):
        own.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("target", ["{elsewhere}", "../../../elsewhere", "{elsewhere}/new", "/dev/null"])
@pytest.mark.parametrize(
    "name",
    ["export", "export/nested/a", "run.json", "metrics.jsonl", "logs/launcher.log", ".hydra/config.yaml", ".hydra",
     "images/val", "evaluations.jsonl", "export/config.yaml"],
)  # fmt: skip
def test_a_link_out_of_the_folder_is_rejected(folder, tmp_path, name, target):
    place = folder.path / name
    if place.is_dir():
        os.rename(place, tmp_path / "moved")
    place.symlink_to(target.format(elsewhere=tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match=f"{name} is a link to .*remove the link"):
        folder.check_links()


def test_links_within_the_folder_and_checkpoints_elsewhere_are_allowed(folder, tmp_path):
    (folder.path / "export" / "latest").symlink_to("nested")
    (folder.path / "newest.log").symlink_to(folder.log_path())
    folder.checkpoints.rmdir()
    folder.checkpoints.symlink_to(tmp_path / "elsewhere")
    folder.check_links()
