"""A composed configuration as plain containers: OmegaConf takes a hundred times longer to read or resolve a value."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from omegaconf import Container, DictConfig, OmegaConf

PATH = r"[A-Za-z_]\w*(?:\.\w+)*"
PART = re.compile(
    rf"\$\{{(?:(?P<path>{PATH})|oc\.select:(?P<optional>{PATH}), ?null"
    rf"|(?P<resolver>launcher\.\w+):(?:\$\{{(?P<argument>{PATH})\}})?)\}}"
)
"""The interpolations that are resolved here; OmegaConf resolves the others."""
DEEPEST = 20

RESOLVERS: dict[str, Callable[["Written", Any], Any]] = {}
"""Launcher's own resolvers by name; each gets the configuration and its argument."""


class Written:
    """
    Args:
        tree: the configuration, interpolations as written, with its `hydra` node if it has one. Trees share their
            nodes, so nothing in them is changed in place.
        root: returns the same as a DictConfig, for interpolations that only OmegaConf resolves.
    """

    def __init__(self, tree: dict[str, Any], root: Callable[[], DictConfig]):
        self.tree, self._root = tree, root

    @classmethod
    def of(cls, config: "DictConfig | Written") -> "Written":
        return config if isinstance(config, Written) else cls(plain(config), lambda: config)

    @cached_property
    def root(self) -> DictConfig:
        return self._root()

    def replaced(self, **nodes: Any) -> "Written":
        return Written(self.tree | nodes, self._root)

    @property
    def without_hydra(self) -> dict[str, Any]:
        return {key: value for key, value in self.tree.items() if key != "hydra"}

    def at(self, keys: Iterable[Any]) -> Any:
        """The resolved value under nested keys; a container is returned as written.

        Raises:
            omegaconf.errors.OmegaConfBaseException: it does not resolve.
        """
        try:
            return self._at(keys, 0)
        except _NotHere:
            value: Any = self.root
            for key in keys:
                value = value[key]
            return OmegaConf.to_container(value, resolve=False) if isinstance(value, Container) else value

    def select(self, path: str) -> Any:
        """The resolved value at a dotted path; None if there is no such key.

        Raises:
            omegaconf.errors.OmegaConfBaseException: it does not resolve.
        """
        try:
            return self._at(path.split("."), 0) if self._has(path) else None
        except _NotHere:
            value = OmegaConf.select(self.root, path)
            return OmegaConf.to_container(value, resolve=False) if isinstance(value, Container) else value

    def _at(self, keys: Iterable[Any], depth: int) -> Any:
        value: Any = self.tree
        for key in keys:
            if not (key in value if isinstance(value, Mapping) else isinstance(value, list) and type(key) is int):
                raise _NotHere
            value = self._resolved(value[key], depth)
        return value

    def _resolved(self, written: Any, depth: int) -> Any:
        if written == "???" or depth > DEEPEST:
            raise _NotHere
        if not is_interpolation(written):
            return written
        if match := PART.fullmatch(written):
            return self._part(match, depth)
        if {"$", "\\"} & set(PART.sub("", written)):
            raise _NotHere
        return PART.sub(lambda match: self._text(match, depth), written)

    def _text(self, match: re.Match[str], depth: int) -> str:
        value = self._part(match, depth)
        if isinstance(value, Mapping | list):
            raise _NotHere
        return str(value)

    def _part(self, match: re.Match[str], depth: int) -> Any:
        path, optional, resolver, argument = match.group("path", "optional", "resolver", "argument")
        if resolver not in (None, *RESOLVERS) or (path or optional or argument or "").startswith("hydra"):
            raise _NotHere  # the nodes of `hydra` have types
        if optional:
            return self._at(optional.split("."), depth + 1) if self._has(optional) else None
        if path:
            return self._at(path.split("."), depth + 1)
        return RESOLVERS[resolver](self, self._at(argument.split("."), depth + 1) if argument else None)

    def _has(self, path: str) -> bool:
        node: Any = self.tree
        for key in path.split("."):
            if is_interpolation(node):
                raise _NotHere
            if not isinstance(node, Mapping) or key not in node:
                return False
            node = node[key]
        return node != "???"


class _NotHere(Exception):
    """Only OmegaConf resolves it, or reports why it does not resolve."""


def plain(config: Any) -> dict[str, Any]:
    """A node as plain containers, interpolations as written."""
    tree = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def is_interpolation(written: Any) -> bool:
    """Whether a value of a tree must be resolved."""
    return isinstance(written, str) and "${" in written
