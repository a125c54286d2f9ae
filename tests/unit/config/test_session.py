"""Private names of Hydra and OmegaConf are in one module."""

import ast
import re
from collections.abc import Iterator

import pytest

from support.paths import ROOT

SRC = ROOT / "src"
ALLOWED = SRC / "launcher" / "config" / "session.py"
PRIVATE = re.compile(r"_(?!_).*(?<!_)")  # `_target_` and its like are keys of a configuration
HYDRA = ("hydra", "omegaconf")


def private_names(source: str) -> Iterator[str]:
    """Private modules of Hydra and OmegaConf that a source imports, and, if it imports any of the two, private
    attributes of anything but `self`, `cls` and other modules."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {(alias.asname or alias.name).split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    of_hydra = {name: path for name, path in modules.items() if path.split(".")[0] in HYDRA}
    yield from (path for path in of_hydra.values() if any(map(PRIVATE.fullmatch, path.split("."))))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr) and of_hydra:
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner not in ("self", "cls") and (owner not in modules or owner in of_hydra):
                yield node.attr


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from hydra._internal.hydra import Hydra", ["hydra._internal.hydra.Hydra"]),
        ("import omegaconf._utils", ["omegaconf._utils"]),
        ("import omegaconf\nconfig._get_node('a')", ["_get_node"]),
        ("import os, omegaconf\nos._exit(1)\nself._x\nconfig._target_", []),
        ("config._get_node('a')", []),
    ],
)
def test_private_names_are_seen(source: str, names: list[str]) -> None:
    assert list(private_names(source)) == names


def test_only_the_session_uses_private_names_of_hydra() -> None:
    users = {path for path in SRC.rglob("*.py") if list(private_names(path.read_text()))}
    assert users == {ALLOWED}
