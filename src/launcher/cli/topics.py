"""`--help optimizer`: the options and keys of a group.

A topic may also be an option (`optimizer=sgd`), a section or a key.
"""

import textwrap
from collections.abc import Iterator, Sequence
from importlib.resources.abc import Traversable

from launcher.config.messages import hint
from launcher.config.options import groups
from launcher.config.schema.reference import Key, Option, group_options, top_keys
from launcher.errors import ConfigError


def topic_text(topic: str, folders: Sequence[Traversable], width: int = 80) -> str:
    """The help of a group, an option (`optimizer=sgd`), a section or a key (`optimizer.lr`)."""
    name, _, option = topic.lstrip("~+").partition("=")
    part, dot, _ = name.partition(".")
    listed = group_options(folders, part)
    tops = [key for key in top_keys(folders[0]) if part in (key.name, key.name.partition(".")[0])]
    if not listed and not tops:
        sections = dict.fromkeys(key.name.partition(".")[0] for key in top_keys(folders[0]))
        raise _unknown(topic, part, [*groups(folders), *sections])
    if dot:
        return _keys_text(
            name,
            topic,
            [(f"{part}={choice.name}", choice.keys) for choice in listed] + [("", tuple(tops))],
            width,
        )
    if option and option not in [choice.name for choice in listed]:
        raise _unknown(topic, option, [choice.name for choice in listed])
    parts = [
        "\n".join(_option_lines(choice, width)) for choice in listed if option in ("", choice.name)
    ]
    parts += ["\n".join(_key_lines(tops, width))] if tops else []
    return "\n\n".join(parts) + "\n"


def _keys_text(
    name: str, topic: str, groups: Sequence[tuple[str, Sequence[Key]]], width: int
) -> str:
    """A key and the keys below it, for each option that has them."""
    lines = []
    for heading, keys in groups:
        if chosen := [key for key in keys if key.name == name or key.name.startswith(f"{name}.")]:
            lines += [*([heading] if heading else []), *_key_lines(chosen, width)]
    if not lines:
        raise _unknown(topic, name, [key.name for _, keys in groups for key in keys])
    return "\n".join(lines) + "\n"


def _unknown(topic: str, name: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"--help {topic}: there is no {name}{hint(name, known)} There are {', '.join(known)}."
    )


def _option_lines(option: Option, width: int) -> Iterator[str]:
    yield f"{option.group}={option.name}" + (f"   {option.target}" if option.target else "")
    if option.comment:
        yield from textwrap.wrap(
            option.comment, width - 2, initial_indent="  ", subsequent_indent="  "
        )
    if option.includes:
        text = f"includes {' '.join(option.includes)}"
        yield from textwrap.wrap(text, width - 2, initial_indent="  ", subsequent_indent="  ")
    yield from _key_lines(option.keys, width)


def _key_lines(keys: Sequence[Key], width: int) -> Iterator[str]:
    """Each key with its default; below it the comment, and the type in parentheses."""
    for key in keys:
        yield f"  {'' if key.is_set else '+'}{key.name}={key.default}"
        text = (
            f"{key.comment} ({key.kind})" if key.comment and key.kind else key.comment or key.kind
        )
        yield from textwrap.wrap(text, width - 6, initial_indent=" " * 6, subsequent_indent=" " * 6)
