"""A fast reader of the YAML files in a run's `.hydra/`: the runs of a sweep have most of their text in common."""

import json
import re
from functools import lru_cache
from typing import Any

import yaml

from launcher.config.plain_yaml import load
from launcher.config.tree import leaves

SECTION = re.compile(r"^(?=\w)", re.MULTILINE)
CHILD = re.compile(r"^(?=  \w)", re.MULTILINE)
CHOICES = re.compile(r"^    choices:\n(      .*\n)+(?=  ? ? ?\S)", re.MULTILINE)


def values(text: str) -> dict[str, str]:
    """A configuration by dotted keys, values as typed on a command line: {"optimizer.lr": "0.001"}. A top-level section
    that several runs share is parsed once.

    Raises:
        yaml.YAMLError: it cannot be read.
    """
    try:
        sections = [_section(section) for section in SECTION.split(text) if section]
    except (yaml.YAMLError, TypeError, ValueError, StopIteration):  # not in the form of our files
        config = load(text)
        return flat(config) if isinstance(config, dict) else {}
    return {key: value for section in sections for key, value in section.items()}


@lru_cache(maxsize=1000)
def _section(text: str) -> dict[str, str]:
    """
    Raises:
        yaml.YAMLError, TypeError: the text cannot be parsed by itself.
    """
    head, *children = CHILD.split(text)
    lines = [child for child in children if "\n" not in child.rstrip("\n")]
    if len(lines) in (0, len(children)):
        return flat(_node(text))
    name, values = _only(head + "".join(lines))
    rest = iter(values.items())
    items = [next(rest) if child in lines else _block(head + child) for child in children]
    if len(dict(items)) < len(children) or next(rest, None):
        raise TypeError(text)
    return flat({name: dict(items)})


@lru_cache(maxsize=1000)
def _block(text: str) -> tuple[str, Any]:
    """A key with a value of several lines, such as a long list. Runs may share it although their sections differ."""
    ((key, value),) = _only(text)[1].items()
    return key, value


def _only(text: str) -> tuple[str, dict[str, Any]]:
    ((name, values),) = _node(text).items()
    if not isinstance(values, dict):
        raise TypeError(text)
    return name, values


def _node(text: str) -> dict[str, Any]:
    node = load(text)
    if not isinstance(node, dict) or len(node) != 1:
        raise TypeError(text)
    return node


def flat(config: dict[str, Any]) -> dict[str, str]:
    return {path: written(value) for path, value in leaves(config).items()}


def written(value: Any) -> str:
    """A value as on a command line: `null`, `true`, `0.001`, `[a,b]`."""
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


@lru_cache(maxsize=100)
def choices(text: str) -> dict[str, str]:
    """The choices in a text that `CHOICES` matches.

    Raises:
        yaml.YAMLError: it cannot be read.
    """
    return {str(group): written(option) for group, option in load(text)["choices"].items()}
