"""Rejected YAML."""

import pytest
import yaml

from launcher.config.plain_yaml import load


@pytest.mark.parametrize("text", ["a: [", "a: !!python/name:os.system", b"\xff"])
def test_plain_yaml_rejects_damage_and_tags_that_run_code(text):
    with pytest.raises((yaml.YAMLError, UnicodeDecodeError)):
        load(text)
