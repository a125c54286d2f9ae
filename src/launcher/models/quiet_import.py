"""Import a library without the messages that it logs while it is imported."""

import logging
from importlib import import_module
from types import ModuleType


def import_quietly(name: str) -> ModuleType:
    """Import a module. Its warnings are not logged, for instance of kernels for other GPUs."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        return import_module(name)
    finally:
        logging.disable(disabled)
