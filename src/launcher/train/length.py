"""The length of a run in steps, computed from `trainer.max_epochs`."""

import math
from fractions import Fraction

from launcher.config.construct import instantiate
from launcher.config.run_config import RunConfig
from launcher.config.schema.validate import without_own_keys
from launcher.data.iterable import length
from launcher.errors import ConfigError


def total_steps(epochs: float, dataset_size: int, batch_size: int) -> int:
    """Optimizer steps in which every sample is used `epochs` times, rounded up."""
    return math.ceil(Fraction(str(epochs)) * dataset_size / batch_size)


def with_max_steps(config: RunConfig) -> RunConfig:
    """Return the configuration with `trainer.max_steps` computed from `trainer.max_epochs`, if set.

    A schedule over the whole run follows.
    """
    epochs = config.trainer.max_epochs
    if epochs is None:
        return config
    data = instantiate(without_own_keys(config.plain["data"]), "data")
    data.check()
    size = length(data.train_dataset())
    if size is None:
        raise ConfigError(
            f"trainer.max_epochs={epochs}: the training data have no length; set trainer.max_steps."
        )
    steps = total_steps(epochs, size, config.plain["data"]["batch_size"])
    return config.with_steps(steps)
