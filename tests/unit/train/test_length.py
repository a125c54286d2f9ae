"""`trainer.max_epochs`."""

from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.errors import ConfigError
from launcher.train.length import total_steps, with_max_steps

SYNTHETIC = ["data=synthetic", "data.num_samples=100", "data.batch_size=32"]


@pytest.mark.parametrize(("epochs", "steps"), [(1, 4), (3, 10), (0.5, 2), (0.32, 1), (8.0, 25)])
def test_every_sample_is_used_so_often(epochs: float, steps: int) -> None:
    assert total_steps(epochs, 100, 32) == steps


def test_the_schedule_follows() -> None:
    def composed(*overrides: str) -> Any:
        return with_max_steps(compose([*SYNTHETIC, "run.name=a", "run.id=b", *overrides]))

    config = composed("trainer.max_epochs=3")
    assert (config.trainer.max_steps, config.scheduler.max_steps) == (10, 10)
    config = composed("trainer.max_epochs=3", "scheduler.max_steps=50")
    assert (config.trainer.max_steps, config.scheduler.max_steps) == (10, 50)
    assert composed("trainer.max_steps=7").trainer.max_steps == 7


def test_a_stream_without_a_length_is_refused() -> None:
    config = compose(["data=custom", "data.dataset._target_=itertools.count", "model=mlp", "trainer.max_epochs=1",
                      "run.name=a", "run.id=b"])  # fmt: skip
    with pytest.raises(ConfigError, match=r"trainer\.max_epochs=1.*: the training data have no length"):
        with_max_steps(config)
