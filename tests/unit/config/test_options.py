"""Options of installed packages."""

import itertools
import sys

import pytest

from launcher.cli.help import folders_of, help_text
from launcher.config.compose.composer import compose
from launcher.config.options import find_installed
from launcher.errors import ConfigError
from support.composition import validate

NUMBERS = itertools.count()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The name of an installed package with `model=line` in conf/, in a folder that tests may
    change. Importing it fails. Each test has a package of its own, since places of modules are
    cached."""
    name = f"theirs{next(NUMBERS)}"
    files = {
        f"{name}/__init__.py": "raise ImportError('was imported')\n",
        f"{name}/conf/model/line.yaml": (
            "_target_: torch.nn.Linear\nin_features: 2\nout_features: 3\n"
        ),
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/entry_points.txt": f"[launcher.conf]\n{name} = {name}.conf\n",
    }
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_package_brings_options(package, tmp_path):
    assert find_installed() == {f"{package}.conf": tmp_path / package / "conf"}
    config = compose(["model=line", "model.out_features=4"])
    validate(config)
    assert config.model == {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 4}
    assert "model: gpt, huggingface, line, mlp" in help_text(folders_of(None))
    assert package not in sys.modules


def test_a_folder_that_does_not_exist_is_named(package, tmp_path):
    (tmp_path / f"{package}-1.0.dist-info/entry_points.txt").write_text(
        f"[launcher.conf]\nit = {package}x.conf\n"
    )
    with pytest.raises(
        ConfigError, match=rf"launcher.conf={package}x.conf: an installed package names this folder"
    ):
        compose([])
