"""Build parts from their settings.

Only this module imports Hydra's own functions for it.

Every `_target_` of a configuration is imported and called. A stored configuration that may come
from somebody else is checked before (see `launcher.config.trust`).
"""

import logging
from contextlib import AbstractContextManager, nullcontext, suppress
from pkgutil import resolve_name
from typing import Any

from hydra import utils as hydra_utils
from hydra.utils import get_object
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import OmegaConf

from launcher.config.secrets import escape
from launcher.config.tree import Node, map_leaves, nest, walk, without
from launcher.config.typed_arguments import with_types

logger = logging.getLogger(__name__)

UNCHECKED = getattr(hydra_utils, "UNSAFE_DISABLE_EXECUTION_CHECKS", None)
"""A setting of Hydra since 1.4: its own list of allowed targets is not used, since
`launcher.config.trust` has decided. None if this version of Hydra has no such list."""


def without_hydra_whitelist() -> AbstractContextManager[object]:
    """Build without Hydra's own list of allowed targets, callbacks included."""
    if UNCHECKED is None:
        return nullcontext()
    context: AbstractContextManager[object] = hydra_utils.execution_whitelist(UNCHECKED)  # type: ignore[attr-defined]
    return context


def instantiate(node: Node | None, path: str = "", **changes: object) -> Any:
    """Build a resolved node, inner nodes first, with some settings changed. None stays None.

    Classes get plain containers, unless the node has a `_convert_`. Messages have the `path`.
    """
    if node is None:
        return None
    if "_convert_" not in node:
        changes["_convert_"] = "object"
    # Hydra 1.3 resolves twice.
    for _ in range(2 if UNCHECKED is None else 1):
        node = map_leaves(node, lambda value, _: escape(value))
    node = _typed(node, path)
    config = OmegaConf.create(nest({path or "node": node}), flags={"allow_objects": True})
    with without_hydra_whitelist():
        return hydra_instantiate(OmegaConf.select(config, path or "node"), **changes)


def _typed(node: Any, path: str) -> Any:
    """Return a node whose targets convert their settings to the types that they declare."""
    if isinstance(node, list):
        return [_typed(item, f"{path}[{index}]") for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    typed = node
    # Otherwise the target gets the inner nodes as they are.
    if node.get("_recursive_", True):
        typed = {key: _typed(value, f"{path}.{key}".lstrip(".")) for key, value in node.items()}
    if isinstance(target := node.get("_target_"), str):
        try:
            function = resolve_name(target)
        # Hydra looks the target up again, and reports the error.
        except Exception as error:
            logger.debug("%s: %s has no types: %s", path, target, error)
            return typed
        converting = with_types(function, path)
        if converting is not function:
            typed = {**typed, "_target_": converting}
    return typed


def construct(settings: Node) -> Any:
    """Call the `_target_` with the other settings, which are resolved."""
    arguments = without(settings, "_target_", "_recursive_", "_convert_")
    return with_types(target_object(str(settings["_target_"])), "")(**arguments)


def target_object(target: str) -> Any:
    """Import the class or function of a `_target_`.

    Raises:
        ImportError, ValueError: there is none.
    """
    return get_object(target)


def import_targets(tree: Node) -> None:
    """Import the modules of all classes that a configuration names, where that is possible.

    A module is imported once in a process. So what it draws, seeds or sets when it is imported must
    come before all that a run seeds and sets, or a later run in the process would differ.
    """
    for path, value in walk(tree, lists=True):
        if path.rpartition(".")[2] == "_target_" and isinstance(value, str):
            # Whatever builds the class reports the error.
            with suppress(Exception, SystemExit):
                resolve_name(value)
