"""The C parser gives what the Python one gives."""

import pytest
import yaml

from launcher.config.plain_yaml import load


@pytest.mark.parametrize("text", [
    "a: {b: [1, 2.5, null, true]}", "day: 2026-01-31", "", b"name: caf\xc3\xa9", "- 'two\n  lines'",
])  # fmt: skip
def test_plain_yaml_reads_as_safe_load_does(text):
    assert load(text) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["a: [", "a: !!python/name:os.system", b"\xff"])
def test_plain_yaml_rejects_damage_and_tags_that_run_code(text):
    with pytest.raises((yaml.YAMLError, UnicodeDecodeError)):
        load(text)
