"""Build parts from their settings.

Only this module imports Hydra's own functions for it.

Every `_target_` of a configuration is imported and called. A stored configuration that may come
from somebody else is checked before (see `launcher.config.trust`).
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hydra import utils as hydra_utils
from hydra.utils import get_object
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import OmegaConf

from launcher.config.resolve import escaped

UNCHECKED = getattr(hydra_utils, "UNSAFE_DISABLE_EXECUTION_CHECKS", None)
"""A setting of Hydra since 1.4: its own list of allowed targets is not used, since
`launcher.config.trust` has decided. None if this version of Hydra has no such list."""


def decided_here() -> AbstractContextManager[object]:
    """Build without Hydra's own list of allowed targets.

    This includes the callbacks that Hydra builds itself.
    """
    if UNCHECKED is None:
        return nullcontext()
    context: AbstractContextManager[object] = hydra_utils.execution_whitelist(UNCHECKED)  # type: ignore[attr-defined]
    return context


def instantiate(node: object, **changes: object) -> Any:
    """Build a node: call its `_target_` with the other settings; nodes inside it are built first.

    Args:
        node: part of a configuration, or plain containers; None is returned unchanged.
        changes: settings that differ from the node's.
    Raises:
        hydra.errors.InstantiationException: a target cannot be imported, or raises an error.
    """
    with decided_here():
        return hydra_instantiate(node, **changes)


def construct(settings: Mapping[str, object]) -> Any:
    r"""Call the `_target_` with the other settings.

    `instantiate` would resolve them once more, so that a shell line with `${HOME}`, which is
    written `\${HOME}` in a configuration, would become an interpolation.

    Args:
        settings: plain containers, as they are stored. Values from the environment are read now.
    """
    stored: Any = OmegaConf.to_container(OmegaConf.create(escaped(settings)), resolve=True)
    arguments = {
        key: value
        for key, value in stored.items()
        if key not in ("_target_", "_recursive_", "_convert_")
    }
    return target_object(str(settings["_target_"]))(**arguments)


def target_object(target: str) -> Any:
    """The class or function of a `_target_`, imported.

    Raises:
        ImportError, ValueError: there is none.
    """
    return get_object(target)
