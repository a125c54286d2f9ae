"""The public names: `from launcher import ...` finds each of them."""

from launcher.compat.trainloop import CudaMaxMemoryHook as CudaMaxMemoryHook
from launcher.compat.trainloop import EMAHook as EMAHook
from launcher.compat.trainloop import ImageFileLoggerHook as ImageFileLoggerHook
from launcher.compat.trainloop import LossNoneWarning as LossNoneWarning
from launcher.compat.trainloop import key_average as key_average
from launcher.compat.trainloop import map_nested_tensor as map_nested_tensor
from launcher.data.base import DataSource as DataSource
from launcher.errors import ConfigError as ConfigError
from launcher.errors import TrainingError as TrainingError
from launcher.hooks.base import BaseHook as BaseHook
from launcher.hooks.checkpointing import CheckpointingHook as CheckpointingHook
from launcher.hooks.early_stopping import EarlyStoppingHook as EarlyStoppingHook
from launcher.hooks.ema import EmaHook as EmaHook
from launcher.hooks.evaluation import EvaluationHook as EvaluationHook
from launcher.hooks.functions import FunctionHook as FunctionHook
from launcher.hooks.jsonl import JsonlHook as JsonlHook
from launcher.hooks.logging import LoggingHook as LoggingHook
from launcher.hooks.media import MediaHook as MediaHook
from launcher.hooks.memory import MemoryHook as MemoryHook
from launcher.hooks.progress import ProgressHook as ProgressHook
from launcher.models.base import Model as Model
from launcher.strategies.base import Strategy as Strategy
from launcher.trackers.base import Tracker as Tracker
from launcher.train.composed import Trainer as Trainer
from launcher.train.load import load_model as load_model
from launcher.train.trainer import BaseTrainer as BaseTrainer
