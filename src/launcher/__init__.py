"""Launcher: a Hydra-composed experiment launcher for PyTorch. A name loads its module only when used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.hooks.base import BaseHook as BaseHook
    from launcher.hooks.checkpointing import CheckpointingHook as CheckpointingHook
    from launcher.hooks.early_stopping import EarlyStoppingHook as EarlyStoppingHook
    from launcher.hooks.ema import EMAHook as EMAHook
    from launcher.hooks.ema import EmaHook as EmaHook
    from launcher.hooks.evaluation import EvaluationHook as EvaluationHook
    from launcher.hooks.functions import FunctionHook as FunctionHook
    from launcher.hooks.images import ImageFileLoggerHook as ImageFileLoggerHook
    from launcher.hooks.jsonl import JsonlHook as JsonlHook
    from launcher.hooks.logging import LoggingHook as LoggingHook
    from launcher.hooks.media import MediaHook as MediaHook
    from launcher.hooks.memory import CudaMaxMemoryHook as CudaMaxMemoryHook
    from launcher.hooks.progress import ProgressHook as ProgressHook
    from launcher.hooks.records import key_average as key_average
    from launcher.hooks.records import map_nested_tensor as map_nested_tensor
    from launcher.train.composed import Trainer as Trainer
    from launcher.train.load import load_model as load_model
    from launcher.train.skipped import LossNoneWarning as LossNoneWarning
    from launcher.train.trainer import BaseTrainer as BaseTrainer

_MODULES = {
    "BaseTrainer": "train.trainer", "Trainer": "train.composed", "LossNoneWarning": "train.skipped",
    "BaseHook": "hooks.base", "ProgressHook": "hooks.progress", "LoggingHook": "hooks.logging",
    "CheckpointingHook": "hooks.checkpointing", "EvaluationHook": "hooks.evaluation",
    "EarlyStoppingHook": "hooks.early_stopping", "JsonlHook": "hooks.jsonl",
    "ImageFileLoggerHook": "hooks.images", "MediaHook": "hooks.media",
    "EmaHook": "hooks.ema", "EMAHook": "hooks.ema",
    "CudaMaxMemoryHook": "hooks.memory", "FunctionHook": "hooks.functions",
    "map_nested_tensor": "hooks.records", "key_average": "hooks.records",
    "load_model": "train.load",
}  # fmt: skip
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'launcher' has no attribute {name!r}")
    return getattr(import_module(f"launcher.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
