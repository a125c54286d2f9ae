"""Keys of other trainers are errors that name ours."""

import pytest
from omegaconf import OmegaConf

from launcher.config.compose import compose
from launcher.config.other_names import ELSEWHERE
from support.composition import mistakes


@pytest.mark.parametrize("prefix", ["", "+", "trainer.", "+trainer."])
def test_a_name_of_another_trainer_names_ours(prefix: str) -> None:
    found = {
        message.lstrip("+") for message in mistakes([f"{prefix}{name}=1" for name in ELSEWHERE])
    }
    key = prefix.lstrip("+")
    assert found == {
        f"{key}{name}=1: no key {key}{name}; use {ours}." for name, ours in ELSEWHERE.items()
    }


def test_ours_exist_and_those_of_other_trainers_do_not() -> None:
    config = compose([])
    for name, ours in ELSEWHERE.items():
        for prefix in ("", "trainer."):
            assert OmegaConf.select(config, f"{prefix}{name}", default="absent") == "absent"
        assert OmegaConf.select(config, ours.partition(",")[0], default="absent") != "absent"
