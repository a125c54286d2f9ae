"""A configuration's values as plain containers and as settings."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

from omegaconf import Container, OmegaConf

from launcher.config.tree import Node, Tree

T = TypeVar("T")


def to_plain(config: object) -> Tree:
    """A node as plain containers, interpolations as written."""
    tree = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def resolve_at(config: Any, keys: Iterable[object]) -> object:
    """Return the resolved value under nested keys; a container is returned as written."""
    for key in keys:
        config = config[key]
    if isinstance(config, Container):
        return OmegaConf.to_container(config, resolve=False)
    return config


def settings_of(cls: type[T], node: Node) -> T:
    """Convert a valid node to a class of `launcher.config.settings`.

    Keys that an earlier version has not stored have their defaults, and users may add keys to
    some nodes.
    """
    names = [field.name for field in fields(cls) if field.name in node]  # type: ignore[arg-type]
    return cls(**{name: node[name] for name in names})
