"""Old names of keys, and those of other trainers, are errors that say ours, wherever they are."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from launcher.config.compose import compose
from launcher.config.diagnose import diagnose
from launcher.config.renamed import ELSEWHERE, RENAMED


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_an_old_name_on_the_command_line_names_the_new_one(prefix: str) -> None:
    found = diagnose([f"{prefix}{key}=1" for key in RENAMED])
    assert sorted(found) == sorted(f"{key}=1: is now {new}." for key, new in RENAMED.items())


def test_old_names_in_a_preset_name_the_new_ones(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    tree = OmegaConf.create({})
    for key in RENAMED:
        OmegaConf.update(tree, key, 1)
    preset = "# @package _global_\n" + OmegaConf.to_yaml(tree)
    (tmp_path / "experiment" / "old.yaml").write_text(preset)
    found = diagnose(["experiment=old"], tmp_path)
    assert sorted(found) == sorted(f"{key}=1: is now {new}." for key, new in RENAMED.items())


def test_new_names_exist_and_old_ones_do_not() -> None:
    config = compose([])
    for old, new in RENAMED.items():
        assert OmegaConf.select(config, old) is None
        assert OmegaConf.select(config, new.partition(",")[0], default="absent") != "absent"


@pytest.mark.parametrize("prefix", ["", "+", "trainer.", "+trainer."])
def test_a_name_of_another_trainer_names_ours(prefix: str) -> None:
    found = {
        message.lstrip("+") for message in diagnose([f"{prefix}{name}=1" for name in ELSEWHERE])
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
