"""Keys of other trainers are errors that name ours."""

import pytest
from omegaconf import OmegaConf

from launcher.config.compose import compose
from launcher.config.messages import ELSEWHERE
from support.composition import mistakes

OURS = {name: ours for ours, names in ELSEWHERE.items() for name in names.split()}


@pytest.mark.parametrize("prefix", ["", "+", "trainer.", "+trainer."])
def test_a_name_of_another_trainer_names_ours(prefix: str) -> None:
    found = {message.lstrip("+") for message in mistakes([f"{prefix}{name}=1" for name in OURS])}
    key = prefix.lstrip("+")
    assert found == {
        f"{key}{name}=1: no key {key}{name}; use {ours}." for name, ours in OURS.items()
    }


def test_ours_exist() -> None:
    config = compose([])
    for ours in ELSEWHERE:
        assert OmegaConf.select(config, ours.partition(",")[0], default="absent") != "absent"
