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
    "run:\n  a: 0x1f\n  b: 012\n  c: 1_000\n  d: 1:30\n  e: 2027-01-01\n  f: .5\n  g: 1.0e-05\n  h: 1e-5\n",
    "run:\n  a: yes\n  b: Null\n  c: .inf\n  d: 12345678\n  e: '12345678'\n  f: /a/b-c.d\n  g: 1234e567\n",
    "run:\n  on: 1\n  off: a\n",
    "run:\n  a: 1\n  a : 2\n  b: {}\n  c:\n  d: a#b\n  e: a #b\n",
    "run:\n  a: 1\nmodel:\n  b: 1\nrun:\n  c: 1\n",
    "run:\r\n  a: 1\r\n  b: c\r\nseed: 1\r\n",
    "seed: 1\rmodel: a\n",
    "run:\n  a: b\n  text: |\n    one\n\nseed: 1\n\n",
    "run:\n  a: b\n  text: |",
    "text: |+\n  a\n\n\nseed: 1",
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
    saved.section.cache_clear()
    for seed in range(20):
        saved.values(f"model:\n  dim: 4\nseed: {seed}\n")
    assert saved.section.cache_info().misses == 1 + 20


def test_a_long_list_that_runs_share_is_parsed_once_and_plain_words_never(monkeypatch: pytest.MonkeyPatch) -> None:
    saved._child.cache_clear()
    texts: list[str] = []
    monkeypatch.setattr(saved, "load", lambda text: texts.append(text) or yaml.safe_load(text))
    for id in "abcdef":
        text = f"run:\n  id: {id}\n  skipped:\n  - job\n  - data.num_workers\n  tag: null\n"
        assert list(saved.values(text)) == ["run.id", "run.skipped", "run.tag"]
    assert texts == ["run:\n  skipped:\n  - job\n  - data.num_workers\n", "null"]


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("- a=1\n- +b.c=[1,2]\n- paths.outputs=/a/b\n- model=gpt\n", True),
        ("- a=b'c'\n", True),
        ("- 1\n- a\n", False),
        ("- a: 1\n", False),
        ("- 'a=1'\n", False),
        ("- ~a\n", False),
        ("- a b\n", False),
        ("- a\n  b\n", False),
        ("- a\n# end\n", False),
        ("- a", False),
        ("[]\n", False),
        ("", False),
    ],
)
def test_a_list_of_plain_words(text: str, is_plain: bool) -> None:
    assert saved.items(text) == (yaml.safe_load(text) if is_plain else None)


def test_choices_are_read_from_their_part() -> None:
    hydra = {"a": {"b": 1}, "runtime": {"version": "1", "choices": {"model": "gpt", "none": None}, "output": "/a"}}
    text = yaml.safe_dump({"hydra": hydra}, sort_keys=False)
    assert saved.choices(text) == {"model": "gpt", "none": "null"}
    assert saved.choices(text.replace("b: 1", "choices:\n      b: 1")) is None, "which of the two is not known"


def test_what_is_not_yaml_is_an_error() -> None:
    with pytest.raises(yaml.YAMLError):
        saved.values("seed: [1\n")
