"""A configuration's values as plain containers."""

from collections.abc import Iterable
from typing import Any

from omegaconf import Container, OmegaConf


def to_plain(config: Any) -> dict[str, Any]:
    """A node as plain containers, interpolations as written."""
    tree = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def resolved_at(config: Any, keys: Iterable[Any]) -> Any:
    """The resolved value under nested keys of a configuration; a container is returned as written.

    Raises:
        omegaconf.errors.OmegaConfBaseException: it does not resolve.
    """
    for key in keys:
        config = config[key]
    return OmegaConf.to_container(config, resolve=False) if isinstance(config, Container) else config
