"""Launcher: a Hydra-composed experiment launcher for PyTorch.

Importing the package does not import torch.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from launcher.errors import ConfigError as ConfigError
from launcher.errors import TrainingError as TrainingError

if TYPE_CHECKING:
    from launcher.api import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `from launcher import models` asks for an attribute before it imports the module.
    if name.startswith("_") or find_spec(f"{__name__}.{name}"):
        raise AttributeError(f"module 'launcher' has no attribute {name!r}")
    from launcher import api

    return getattr(api, name)


def __dir__() -> list[str]:
    from launcher import api

    return sorted(name for name in vars(api) if not name.startswith("_"))
