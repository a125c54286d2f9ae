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
    part, is_key, _ = name.partition(".")
    options = group_options(folders, part)
    tops = top_keys(folders[0])
    blocks = [
        ([f"{part}={option.name}"] if is_key else _heading(option, width), option.keys)
        for option in options
        if chosen in ("", option.name)
    ]
    blocks.append(([], tuple(key for key in tops if key.name.partition(".")[0] == part)))
    if is_key:
        blocks = [(lines, _keys_below(name, keys)) for lines, keys in blocks]
        blocks = [(lines, keys) for lines, keys in blocks if keys]
    texts = ["\n".join([*lines, *_key_lines(keys, width)]) for lines, keys in blocks]
    texts = list(filter(None, texts))
    if not texts or (chosen and len(blocks) < 2):
        names = [key.name for option in options for key in option.keys] if is_key else []
        names += [key.name for key in tops] if is_key else [option.name for option in options]
        if not options and not is_key:
            names = [*groups(folders), *dict.fromkeys(key.name.partition(".")[0] for key in tops)]
        unknown = name if is_key else chosen or part
        raise ConfigError(
            f"--help {topic}: there is no {unknown}{hint(unknown, names)} There are"
            f" {', '.join(names)}."
        )
    return ("\n" if is_key else "\n\n").join(texts) + "\n"


def _keys_below(name: str, keys: Sequence[Key]) -> tuple[Key, ...]:
    return tuple(key for key in keys if key.name == name or key.name.startswith(f"{name}."))


def _heading(option: Option, width: int) -> list[str]:
    lines = [f"{option.group}={option.name}" + (f"   {option.target}" if option.target else "")]
    included = f"includes {' '.join(option.includes)}" if option.includes else ""
    for text in (option.comment, included):
        lines += textwrap.wrap(text, width - 2, initial_indent="  ", subsequent_indent="  ")
    return lines


def _key_lines(keys: Sequence[Key], width: int) -> Iterator[str]:
    """Each key with its default; below it the comment, and the type in parentheses."""
    for key in keys:
        yield f"  {'' if key.is_set else '+'}{key.name}={key.default}"
        text = (
            f"{key.comment} ({key.type})" if key.comment and key.type else key.comment or key.type
        )
        yield from textwrap.wrap(text, width - 6, initial_indent=" " * 6, subsequent_indent=" " * 6)
