"""The reference of groups and keys: complete, and true of what a configuration composes to."""

import runpy
import shlex
from functools import cache
from pathlib import Path

from omegaconf import OmegaConf

from launcher.config.compose.composer import compose
from launcher.config.options import main_folder
from launcher.config.schema.reference import all_groups, top_keys


@cache
def reference():
    return all_groups([main_folder()])


def test_every_key_of_the_default_configuration_is_in_the_reference():
    config = compose([])
    listed = {
        key.name: key
        for options in reference().values()
        for option in options
        for key in option.keys
    }
    listed |= {key.name: key for key in top_keys(main_folder())}
    words = "optimizer.lr trainer.compile run.resume hooks.checkpointing.interval paths.outputs"
    for path in shlex.split(words):
        assert OmegaConf.select(config, path) is not None and path in listed
    nodes = {
        key: node
        for key, node in OmegaConf.to_container(config, resolve=False).items()
        if key != "hydra"
    }  # type: ignore[union-attr]
    missing = [path for path in _leaves(nodes) if path not in listed]
    assert missing == []


def _leaves(node: dict, path: str = "") -> list[str]:  # type: ignore[type-arg]
    leaves = []
    for key, value in node.items():
        name = f"{path}.{key}" if path else str(key)
        is_node = isinstance(value, dict) and (not path or "_target_" in value)
        leaves += _leaves(value, name) if is_node else [] if str(key).startswith("_") else [name]
    return leaves


def test_every_key_has_a_type_or_a_comment():
    bare = [
        f"{option.group}={option.name}: {key.name}"
        for options in reference().values()
        for option in options
        for key in option.keys
        if not (key.type or key.comment) and option.target is not None
    ]
    assert bare == []


def test_the_page_of_the_docs_is_up_to_date():
    """`make reference` writes it."""
    docs = Path(__file__).parents[4] / "docs"
    written = runpy.run_path(str(docs / "make_reference.py"))["reference"]()
    assert (docs / "reference.md").read_text(encoding="utf-8") == written
