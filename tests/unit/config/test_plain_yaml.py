"""The C parser gives what the Python one gives."""

import pytest
import yaml

from launcher.config.plain_yaml import load


@pytest.mark.parametrize(
    "text",
    [
        "a: {b: [1, 2.5, null, true]}",
        "day: 2026-01-31",
        "",
        b"name: caf\xc3\xa9",
        "- 'two\n  lines'",
    ],
)
def test_plain_yaml_reads_as_safe_load_does(text):
    assert load(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: [", yaml.YAMLError),
        ("a: !!python/name:os.system", yaml.YAMLError),
        (b"\xff", (yaml.YAMLError, UnicodeDecodeError)),
    ],
)
def test_plain_yaml_rejects_damage_and_tags_that_run_code(text, error):
    with pytest.raises(error):
        load(text)
