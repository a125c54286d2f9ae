"""ZeRO's stages by DeepSpeed, under the name that configurations have for it.

Only this package imports DeepSpeed, and only when it is used, since that takes seconds.
"""

from launcher.strategies.deepspeed.strategy import DeepSpeedStrategy as DeepSpeedStrategy
