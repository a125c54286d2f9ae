"""The ids of all options, presets and commands of the pages stay what they are."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from launcher.config.schema.source import Definition, locate
from support.composition import composed, run_of
from support.paths import ROOT

LINES = Path(__file__).with_name("frozen_option_ids.txt").read_text(encoding="utf-8").splitlines()
"""An id and the overrides that it names in each line: two values of each key of each option, the
hooks that measure what steers, and the commands of README.md and the pages."""
TARGETS = Path(__file__).with_name("frozen_targets.txt").read_text(encoding="utf-8").split()
"""The classes and functions that the options and pages name."""
PARTS = 12


def ids_of(lines: Sequence[str]) -> list[str]:
    commands = [line.partition(" ")[2] for line in lines]
    ids = [run_of(shlex.split(command)).plain["run"]["id"] for command in commands]
    return [f"{id} {command}".strip() for id, command in zip(ids, commands, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_id_of_a_command_stays(part, tmp_path, monkeypatch):
    """A class that a page defines is read, as on the page. Neighbours share a composition."""
    (tmp_path / "warmup.py").write_text(
        "from launcher.hooks.base import BaseHook\n\n\nclass Warmup(BaseHook): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    lines = LINES[len(LINES) * part // PARTS : len(LINES) * (part + 1) // PARTS]
    assert ids_of(lines) == lines


def test_the_table_has_every_option():
    files = [file for file in (ROOT / "conf").rglob("*.yaml") if file.parent.name != "hydra"]
    groups = [file for file in files if "hydra" not in file.parts and file.name != "config.yaml"]
    words = set(re.findall(r"[\w.]+", " ".join(LINES)))
    # Options of `hooks`, and the trackers, are chosen in a list.
    assert {file.stem for file in groups} <= words


@pytest.mark.parametrize("target", TARGETS)
def test_a_class_that_a_configuration_may_name_stays(target):
    """Under its old name, from which the id and the stored configurations of runs are made."""
    assert isinstance(locate(target), Definition)


def test_the_id_in_the_readme_is_the_id_of_its_experiment(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    preset = re.search(r'title="conf/experiment/rings.yaml"\n(.*?)```', text, re.DOTALL)
    assert preset is not None and yaml.safe_load(preset[1])
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "rings.yaml").write_text(preset[1])
    assert composed(["experiment=rings"], tmp_path).run.id == "9a69ab7f5b9e"
    assert "outputs/rings/9a69ab7f5b9e" in text
