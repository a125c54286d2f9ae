"""Reading what runs saved is faster than YAML, and gives the same."""

import pytest
import yaml

from launcher.runs import saved

CONFIG = {"seed": 1, "optimizer": {"lr": 0.001, "betas": [0.9, 0.95]}, "empty": {}, "none": None, "on": True,
          "text": "two\nlines\n\nand: more", "long": "word " * 60,
          "list": ["a", {"b": 1}], "odd key": "#1"}  # fmt: skip


@pytest.mark.parametrize("text", [
    yaml.safe_dump(CONFIG, sort_keys=False),
    yaml.safe_dump(CONFIG, default_flow_style=True),
    yaml.safe_dump(CONFIG, default_style='"'),
    "# a comment\nseed: 1\n# another\nmodel:\n  dim: 2  # the last\n",
    "---\nseed: 1\n...\n",
    "base: &base\n  dim: 1\nmodel: *base\n",
    "base: &base {dim: 1}\nmodel:\n  <<: *base\n",
    "seed: 1\nseed: 2\n",
    'quoted: "over\n  two lines"\nseed: 1\n',
    "text: |\n  seed: 2\n  model: 3\nseed: 1\n",
    "? seed\n: 1\n",
    "run:\n  id: 1\n  skipped:\n  - a\n  - b\n  tag: null\n  more: {}\n",
    "on:\n  id: 1\n  list:\n  - a\n  off: 1\n",
    "run:\n  id: 1\n  list:\n  - a\n  id: 2\n",
    "run:\n  list:\n  - a\n  id: 1\n  list:\n  - b\n",
    "run: |\n  id: 1\n  list:\n    - a\n",
    "run: 'a\n  id: 1\n  list:\n    b\n  end'\n",
    "run:\n  base: &base 1\n  list:\n  - *base\n",
    "run:\n  text: one\n    two\n  # a comment\n  id: 1\n",
    "",
    "[1, 2]",
    "word",
])  # fmt: skip
def test_values_are_as_yaml_reads_them(text: str) -> None:
    config = yaml.safe_load(text)
    expected = saved.flat(config) if isinstance(config, dict) else {}
    assert saved.values(text) == expected
    assert saved.values(text) == expected


def test_a_section_that_runs_share_is_parsed_once() -> None:
    saved._section.cache_clear()
    for seed in range(20):
        saved.values(f"model:\n  dim: 4\nseed: {seed}\n")
    assert saved._section.cache_info().misses == 1 + 20


def test_a_long_list_that_runs_share_is_parsed_once() -> None:
    saved._block.cache_clear()
    for id in range(20):
        text = f"run:\n  id: {id}\n  skipped:\n  - job\n  - data.num_workers\n  tag: null\n"
        assert list(saved.values(text)) == ["run.id", "run.skipped", "run.tag"]
    assert saved._block.cache_info().misses == 1


def test_what_is_not_yaml_is_an_error() -> None:
    with pytest.raises(yaml.YAMLError):
        saved.values("seed: [1\n")
