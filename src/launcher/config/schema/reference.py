"""The options and keys of each group, read from the YAML files and the signatures."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from launcher.config.messages import show
from launcher.config.options import COLLECTIONS, groups, options
from launcher.config.schema.signature import Parameter, Signature, signature_of
from launcher.config.schema.value_types import describe
from launcher.config.settings import SECTIONS, Top, section
from launcher.config.tree import Node, join
from launcher.errors import ConfigError

COMMENT = re.compile(r"(?:^|\s)#\s?(.*)$")
NOT_KEYS = ("_target_", "_partial_", "_convert_", "_recursive_", "defaults")


@dataclass(frozen=True)
class Key:
    name: str
    """The dotted key on the command line: optimizer.lr."""
    default: str
    type: str
    """Its type and bounds in words; empty if unknown."""
    comment: str = ""
    is_set: bool = True
    """True if the YAML file has the key; otherwise it is added with a +."""


@dataclass(frozen=True)
class Option:
    group: str
    name: str
    target: str | None
    comment: str
    keys: tuple[Key, ...]
    includes: tuple[str, ...] = ()
    """Other options that it is composed of."""


def group_options(folders: Sequence[Traversable], group: str) -> list[Option]:
    """The options of a group, each from the first folder that has it."""
    listed = []
    for name in options(folders, group):
        file = next(
            file for folder in folders if (file := folder / group / f"{name}.yaml").is_file()
        )
        try:
            listed.append(_option(group, name, file.read_text(encoding="utf-8")))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: cannot be read: {' '.join(str(error).split())}.") from error
    return listed


def all_groups(folders: Sequence[Traversable]) -> dict[str, list[Option]]:
    return {group: group_options(folders, group) for group in groups(folders)}


def top_keys(folder: Traversable) -> list[Key]:
    """The keys of `config.yaml` that belong to no group."""
    text = (folder / "config.yaml").read_text(encoding="utf-8")
    keys = []
    for key, value in _items(yaml.compose(text)):
        if key in SECTIONS:
            keys += _keys(key, value, section(SECTIONS[key]), text.splitlines())
        elif key in section(Top).names:
            keys.append(_key(key, value, section(Top), text.splitlines()))
    return keys


def _option(group: str, name: str, text: str) -> Option:
    lines = text.splitlines()
    root = yaml.compose(text)
    content = yaml.safe_load(text)
    values = dict(_items(root))
    comment = " ".join(line for line in _comment_lines(lines) if not line.startswith("@package"))
    path = group
    node = root
    if group in COLLECTIONS and len(values) == 1:
        [(part, inner)] = values.items()
        if _target(inner) is not None:
            path = join(group, part)
            node = inner
    elif group in values and "# @package _global_" in lines:
        node = values[group]
    target = _target(node)
    spec = section(SECTIONS[group]) if group == "trainer" else signature_of(target)
    keys = [] if group == "experiment" else _keys(path, node, spec, lines)
    includes = _includes(group, content if isinstance(content, dict) else {})
    return Option(group, name, target, comment, tuple(keys), includes)


def _includes(group: str, content: Node) -> tuple[str, ...]:
    """The entries of a defaults list as on the command line, without `_self_`."""
    entries = [entry for entry in content.get("defaults") or () if entry != "_self_"]
    pairs: list[tuple[str, object]] = []
    for entry in entries:
        pairs += entry.items() if isinstance(entry, dict) else [(group, entry)]
    return tuple(
        f"{key.removeprefix('override ').lstrip('/')}={_format_value(value)}"
        for key, value in pairs
    )


def _keys(path: str, node: yaml.Node | None, spec: Signature, lines: Sequence[str]) -> list[Key]:
    keys = []
    values = dict(_items(node))
    for name, value in values.items():
        target = _target(value)
        if name in NOT_KEYS:
            continue
        if target is None:
            keys.append(_key(join(path, name), value, spec, lines))
            continue
        if target == "???":
            inner = dict(_items(value))["_target_"]
            keys.append(_key(join(path, f"{name}._target_"), inner, signature_of(None), lines))
        keys += _keys(join(path, name), value, signature_of(target), lines)
    for parameter in spec.parameters:
        is_known = parameter.has_default and _kind(parameter)
        if parameter.name not in values and is_known:
            name = join(path, parameter.name)
            default = _format_value(parameter.default)
            keys.append(Key(name, default, _kind(parameter), is_set=False))
    return keys


def _key(path: str, value: yaml.Node, spec: Signature, lines: Sequence[str]) -> Key:
    name = path.rpartition(".")[2]
    type_text = _kind(spec[name]) if name in spec.names else ""
    if isinstance(value, yaml.ScalarNode):
        written = value.value
    else:
        written = _format_value(yaml.safe_load(yaml.serialize(value)))
    return Key(path, written, type_text, _comment_of(lines, value))


def _format_value(value: object) -> str:
    """A value as on a command line."""
    if isinstance(value, str):
        return value
    return show(value, limit=200).replace("'", "")


def _kind(parameter: Parameter) -> str:
    text = "" if parameter.annotation is Any else describe(parameter.annotation)
    return "" if "another type" in text else text


def _items(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        yield from ((key.value, value) for key, value in node.value)


def _target(node: yaml.Node | None) -> str | None:
    target = dict(_items(node)).get("_target_")
    return None if target is None else str(target.value)


def _comment_of(lines: Sequence[str], value: yaml.Node) -> str:
    """Return the comment on the line of a value, or above it for a block."""
    first = value.start_mark.line
    is_flow = isinstance(value, yaml.CollectionNode) and value.flow_style
    if isinstance(value, yaml.ScalarNode) or is_flow:
        match = COMMENT.search(lines[first][value.start_mark.column :])
    else:
        above = lines[first - 2].strip() if first > 1 else ""
        match = COMMENT.search(lines[first - 1]) or COMMENT.match(above)
    return match.group(1).strip() if match else ""


def _comment_lines(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("#"):
            return
        yield line.removeprefix("#").strip()
