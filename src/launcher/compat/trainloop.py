"""trainloop's names of Launcher's parts, which `launcher` exports.

A program of trainloop runs with another import.
"""

from launcher.hooks.ema import EmaHook
from launcher.hooks.media import MediaHook
from launcher.hooks.memory import MemoryHook
from launcher.hooks.records import key_average as key_average
from launcher.hooks.records import map_nested_tensor as map_nested_tensor
from launcher.strategies.missing_loss import LossNoneWarning as LossNoneWarning

EMAHook = EmaHook
CudaMaxMemoryHook = MemoryHook


class ImageFileLoggerHook(MediaHook):
    """Writes images to `visualizations/<step>/`."""

    image_folder = "visualizations"
