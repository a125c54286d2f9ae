"""A fast reader of the YAML files in a run's `.hydra/`: the runs of a sweep have most of their text in common, and the
rest is mostly lines of one plain word."""

import json
import re
import sys
from functools import lru_cache
from typing import Any

import yaml

from launcher.config.plain_yaml import load
from launcher.config.tree import leaves

SECTION = re.compile(r"\n(?=\w)")
HEAD = re.compile(r"([A-Za-z_]\w*):", re.ASCII)
CHILD = re.compile(r"\n(?=  \w)")
PLAIN_CHILD = re.compile(r"  ([A-Za-z_]\w*): ([\w/.][\w/.+=,@-]*)", re.ASCII)
PLAIN_ITEM = re.compile(r"- ([\w/.+][!\"$-9;-~]*)", re.ASCII)
"""Lines of one scalar without quotes: it has no character that means something in YAML."""
CHOICES_KEY = "\n    choices:\n"
CHOICES = re.compile(CHOICES_KEY + r"(?:      .*\n)+(?=  ? ? ?\S)")
TEXT = "tag:yaml.org,2002:str"
RESOLVER = yaml.resolver.Resolver()


def values(text: str) -> dict[str, str]:
    """A configuration by dotted keys, values as typed on a command line: {"optimizer.lr": "0.001"}. A top-level section
    that several runs share is parsed once.

    Raises:
        yaml.YAMLError: it cannot be read.
    """
    try:
        return _by_section(text)
    except (yaml.YAMLError, TypeError, ValueError):  # not in the form of our files
        config = load(text)
        return flat(config) if isinstance(config, dict) else {}


def _by_section(text: str) -> dict[str, str]:
    """
    Raises:
        yaml.YAMLError, TypeError, ValueError: a section cannot be parsed by itself.
    """
    names, values = set(), {}
    texts = sections(text)
    for each in texts:
        name, own = section(each)
        names.add(name)
        values.update(own)
    if len(names) < len(texts):
        raise ValueError(text)
    return values


def sections(text: str) -> list[str]:
    """The top-level sections of a configuration, each without its last line break.

    Raises:
        ValueError: the text does not end with a line break.
    """
    if not text.endswith("\n"):
        raise ValueError(text)
    return SECTION.split(text[:-1])


@lru_cache(maxsize=1000)
def section(text: str) -> tuple[str, dict[str, str]]:
    """The name and the values of one of the `sections`.

    Raises:
        yaml.YAMLError, TypeError, ValueError: it cannot be parsed by itself.
    """
    head, *children = CHILD.split(text)
    match = HEAD.fullmatch(head)
    if match is None or not children or not _is_text(match[1]):
        ((name, value),) = _node(text).items()
        return str(name), flat({name: value})
    if len({child.partition(":")[0] for child in children}) < len(children):
        raise ValueError(text)
    values: dict[str, str] = {}
    for child in children:
        values.update(_child(match[1], child))
    return match[1], values


@lru_cache(maxsize=1000)
def _child(name: str, text: str) -> dict[str, str]:
    """A key of a section with its value, which may have many lines: runs share it where their section differs."""
    match = PLAIN_CHILD.fullmatch(text)
    if match is not None and _is_text(match[1]):
        return {sys.intern(f"{name}.{match[1]}"): match[2] if _is_text(match[2]) else written(load(match[2]))}
    node = _node(f"{name}:\n{text}")
    ((_, _),) = node[name].items()
    return flat(node)


def _node(text: str) -> dict[Any, Any]:
    node = load(text + "\n")
    if not isinstance(node, dict):
        raise TypeError(text)
    return node


def _is_text(word: str) -> bool:
    """Whether YAML reads a plain scalar as text, not as a number, a date, `true` or `null`."""
    return bool(RESOLVER.resolve(yaml.ScalarNode, word, (True, False)) == TEXT)


def flat(config: dict[str, Any]) -> dict[str, str]:
    return {path: written(value) for path, value in leaves(config).items()}


def written(value: Any) -> str:
    """A value as on a command line: `null`, `true`, `0.001`, `[a,b]`."""
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def items(text: str) -> list[str] | None:
    """The items of a list of plain words, one a line, as overrides are saved; None for any other text."""
    *lines, end = text.split("\n")
    words = [_item(line) for line in lines]
    known = [word for word in words if word is not None]
    return known if known and len(known) == len(words) and not end else None


@lru_cache(maxsize=1000)
def _item(line: str) -> str | None:
    match = PLAIN_ITEM.fullmatch(line)
    return match[1] if match is not None and _is_text(match[1]) else None


def choices(text: str) -> dict[str, str] | None:
    """The choices in a hydra.yaml, from the part that has them; None: it is not written as our files are."""
    match = CHOICES.search(text)
    if match is None or text.count(CHOICES_KEY) > 1:
        return None
    try:
        return _choices(match[0])
    except (yaml.YAMLError, AttributeError, TypeError):
        return None


@lru_cache(maxsize=100)
def _choices(text: str) -> dict[str, str]:
    return {str(group): written(option) for group, option in load(text)["choices"].items()}
