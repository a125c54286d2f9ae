"""`trainer.max_epochs`."""

from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.train.length import total_steps, with_max_steps
from support.composition import composed, run_of, validate

pytestmark = pytest.mark.slow

SYNTHETIC = ["data=synthetic", "data.num_samples=100", "data.batch_size=32"]


@pytest.mark.parametrize(("epochs", "steps"), [(1, 4), (3, 10), (0.5, 2), (0.32, 1), (8.0, 25)])
def test_every_sample_is_used_so_often(epochs, steps):
    assert total_steps(epochs, 100, 32) == steps


def test_the_schedule_follows():
    def of(*overrides: str) -> Any:
        return with_max_steps(run_of([*SYNTHETIC, "run.name=a", "run.id=b", *overrides]))

    config = of("trainer.max_epochs=3")
    assert (config.trainer.max_steps, config.plain["scheduler"]["max_steps"]) == (10, 10)
    config = of("trainer.max_epochs=3", "scheduler.max_steps=50")
    assert (config.trainer.max_steps, config.plain["scheduler"]["max_steps"]) == (10, 50)
    assert of("trainer.max_steps=7").trainer.max_steps == 7


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conf")
    (folder / "experiment").mkdir()
    for name, keys in PRESETS.items():
        file = folder / "experiment" / f"{name}.yaml"
        file.write_text(f"# @package _global_\ntrainer: {keys}\n")
    return folder


BOTH = (
    "is set too, and only one may be; set the other to null: trainer.max_epochs=null, or"
    " trainer.max_steps=null."
)
PRESETS = {"steps": "{max_steps: 40}", "epochs": "{max_epochs: 2}"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", 500),
        ("trainer.max_steps=20", 20),
        ("trainer.max_epochs=3", None),
        (
            "trainer.max_epochs=3 trainer.max_steps=20",
            f"trainer.max_steps=20: trainer.max_epochs=3 {BOTH}",
        ),
        (
            "experiment=steps trainer.max_epochs=3",
            f"trainer.max_steps=40: trainer.max_epochs=3 {BOTH}",
        ),
        ("experiment=steps trainer.max_epochs=null", 40),
        ("experiment=epochs", None),
        (
            "trainer.max_steps=null",
            "trainer.max_steps=null: a run needs an end; set it, or trainer.max_epochs.",
        ),
        (
            "trainer.max_epochs=3 hooks.logging.interval=${trainer.max_steps}",
            (
                "hooks.logging.interval=${trainer.max_steps}: is not known before the data are"
                " read, since trainer.max_epochs=3 is set; set hooks.logging.interval to a number,"
                " or use trainer.max_steps."
            ),
        ),
    ],
)
def test_a_run_ends_after_steps_or_after_epochs(presets, words, expected):
    config = composed([*SYNTHETIC, "run.name=a", *words.split()], presets)
    if isinstance(expected, str):
        with pytest.raises(ConfigError) as error:
            validate(config)
        assert error.value.messages == [expected]
        return
    assert validate(config)["trainer"]["max_steps"] == expected
    assert with_max_steps(run_of(config)).trainer.max_steps == (
        expected or total_steps(config.trainer.max_epochs, 100, 32)
    )


def test_unit_of_epochs_is_not_part_of_the_id():
    """The default is null with epochs, and 500 without them."""
    epochs = "trainer.max_epochs=3"
    words = (epochs, f"{epochs} trainer.max_steps=null", "", "trainer.max_steps=500")
    ids = [composed([*SYNTHETIC, *each.split()]).run.id for each in words]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_a_stream_without_a_length_is_rejected():
    words = (
        "data=custom data.dataset._target_=itertools.count model=mlp trainer.max_epochs=1"
        " run.name=a run.id=b"
    )
    config = composed(words.split())
    with pytest.raises(
        ConfigError, match=r"trainer\.max_epochs=1.*: the training data have no length"
    ):
        with_max_steps(run_of(config))
