"""Data sources, the order of samples, and resumable loaders.

Importing a source of files does not import torch, so that a missing file is reported at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.data.base import DataSource as DataSource
    from launcher.data.evaluation_loader import EvaluationLoader as EvaluationLoader
    from launcher.data.loader import ResumableLoader as ResumableLoader
    from launcher.data.sampler import SampleOrder as SampleOrder

_MODULES = {
    "DataSource": "base",
    "EvaluationLoader": "evaluation_loader",
    "ResumableLoader": "loader",
    "SampleOrder": "sampler",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
