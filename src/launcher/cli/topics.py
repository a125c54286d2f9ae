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
    name, _, chosen = topic.lstrip("~+").partition("=")
    part, dot, _ = name.partition(".")
    listed = group_options(folders, part)
    tops = [key for key in top_keys(folders[0]) if part in (key.name, key.name.partition(".")[0])]
    if not listed and not tops:
        sections = dict.fromkeys(key.name.partition(".")[0] for key in top_keys(folders[0]))
        raise _unknown(topic, part, [*groups(folders), *sections])
    if dot:
        blocks = [(f"{part}={option.name}", _keys_below(name, option.keys)) for option in listed]
        parts = [[heading, *_key_lines(keys, width)] for heading, keys in blocks if keys]
        parts += [[*_key_lines(_keys_below(name, tops), width)]]
        if not any(parts):
            names = [key.name for option in listed for key in option.keys]
            raise _unknown(topic, name, names + [key.name for key in tops])
        return "\n".join(line for lines in parts for line in lines) + "\n"
    if chosen and chosen not in [option.name for option in listed]:
        raise _unknown(topic, chosen, [option.name for option in listed])
    texts = [_option_lines(option, width) for option in listed if chosen in ("", option.name)]
    texts += [_key_lines(tops, width)] if tops else []
    return "\n\n".join("\n".join(lines) for lines in texts) + "\n"


def _keys_below(name: str, keys: Sequence[Key]) -> list[Key]:
    return [key for key in keys if key.name == name or key.name.startswith(f"{name}.")]


def _unknown(topic: str, name: str, choices: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"--help {topic}: there is no {name}{hint(name, choices)} There are {', '.join(choices)}."
    )


def _option_lines(option: Option, width: int) -> Iterator[str]:
    yield f"{option.group}={option.name}" + (f"   {option.target}" if option.target else "")
    included = f"includes {' '.join(option.includes)}" if option.includes else ""
    for text in (option.comment, included):
        yield from textwrap.wrap(text, width - 2, initial_indent="  ", subsequent_indent="  ")
    yield from _key_lines(option.keys, width)


def _key_lines(keys: Sequence[Key], width: int) -> Iterator[str]:
    """Each key with its default; below it the comment, and the type in parentheses."""
    for key in keys:
        yield f"  {'' if key.is_set else '+'}{key.name}={key.default}"
        text = (
            f"{key.comment} ({key.type})" if key.comment and key.type else key.comment or key.type
        )
        yield from textwrap.wrap(text, width - 6, initial_indent=" " * 6, subsequent_indent=" " * 6)
