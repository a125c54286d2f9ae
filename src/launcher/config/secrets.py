"""Values that come from the environment, and secrets, which a run does not store.

A value from the environment in `tracker`, `dispatch`, a key of `run.identity_exclude` or a hook
that changes no number is stored as it is written, and resolved again where the run starts.
Everything else is stored resolved, so a secret there is an error. The run's id is a hash over the
resolved values.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from launcher.config.identity.difference import is_within
from launcher.config.messages import ConfigIssue
from launcher.config.schema.hook_dependencies import COUNTING, uncounted_keys
from launcher.config.tree import (
    REFERENCE,
    Node,
    Tree,
    get,
    is_interpolation,
    items,
    join,
    pick,
    walk,
)
from launcher.rundir.secret_patterns import holds_secret, is_secret

VARIABLE = re.compile(r"oc\.env\s*:\s*(\w+)")
OPENING = re.compile(r"(\\*)\$\{")
"""The beginning of an interpolation, with the backslashes before it."""
MIN_HIDDEN_LENGTH = 4
"""Minimum length of a variable's value that messages do not show. A shorter one is any number."""
MAX_SHOWN_LENGTH = 50
"""Characters of a long value that a message shows for certain."""
MIN_SECRET_LENGTH = 8
"""Minimum length of a secret for which other values are searched."""
UNRESOLVED_GROUPS = ("tracker", "dispatch")
RESOLVED_KEYS = (
    "hydra",
    "paths",
    "trainer",
    "run.dir",
    "run.id",
    "run.identity",
    "run.name",
    "run.tag",
    "run.resume",
    "run.init_from",
    "run.fork_from",
    "run.fork_without",
    "run.identity_exclude",
)
"""Keys that are stored resolved all the same: which run it is, where it is stored, and the lengths
that listings read."""


def config_to_store(written: Node, plain: Node) -> Tree:
    """Return a configuration as it is stored, from which OmegaConf resolves the values of `plain`.

    Args:
        written: the configuration with interpolations.
        plain: the same configuration, resolved.
    """
    parts = _as_written(plain)

    def expression_to_keep(path: str, text: object) -> str | None:
        if not (is_interpolation(text) and _is_in(path, parts)):
            return None
        while isinstance(text, str) and (reference := REFERENCE.fullmatch(text)):
            text = get(written, reference[1])
        if not is_interpolation(text):
            return None
        if "oc.env" not in text and not is_secret(_name(path)):
            return None
        # A part of the stored configuration is resolved alone.
        return REFERENCE.sub(lambda match: _inline(match, plain), text)

    def value_to_store(path: str, text: Any, value: Any) -> Any:
        if isinstance(value, Mapping):
            inner = dict(items(text))
            return {
                key: value_to_store(join(path, key), inner.get(key), value[key]) for key in value
            }
        if isinstance(value, list):
            is_list = isinstance(text, list) and len(text) == len(value)
            pairs = zip(text if is_list else [None] * len(value), value, strict=True)
            return [value_to_store(join(path, index), *pair) for index, pair in enumerate(pairs)]
        interpolation = expression_to_keep(path, text)
        if interpolation is not None:
            return interpolation
        return escape(value)

    tree: Tree = value_to_store("", written, plain)
    return tree


def _as_written(plain: Node) -> tuple[str, ...]:
    return (*UNRESOLVED_GROUPS, *uncounted_keys(*pick(plain, COUNTING)))


def _is_in(path: str, parts: Collection[str]) -> bool:
    """Return whether a key is in the parts that are stored as they are written."""
    return is_within(path, parts) and not is_within(path, RESOLVED_KEYS)


def _inline(match: re.Match[str], plain: Node) -> str:
    value = get(plain, match[1])
    if value is None or isinstance(value, Mapping | list):
        return match[0]
    return str(value)


def escape(value: object) -> Any:
    """Escape a text, so that OmegaConf reads no interpolation in it; return any other value."""
    if isinstance(value, str):
        return OPENING.sub(r"\1\1\\${", value)
    return value


def secret_issues(written: Node, plain: Node, stored: Node) -> Iterator[ConfigIssue]:
    """Find secrets that would be stored with the run; see `config_to_store`."""
    for name, text in items(get(written, "hydra.job.env_set")):
        if _is_text(text) and not is_interpolation(text) and holds_secret(name, text):
            way = f"set the variable in the shell: export {_variable(name)}=..."
            yield _issue(f"hydra.job.env_set.{name}", way)
    pairs = zip(walk(plain, lists=True), walk(stored, lists=True), strict=True)
    texts = [
        (path, value, text == escape(value))
        for (path, value), (_, text) in pairs
        if _is_text(value) and not path.startswith(("hydra.", "run.identity"))
    ]
    secrets = [
        value
        for path, value, is_stored in texts
        if not is_stored and is_secret(_name(path)) and len(value) >= MIN_SECRET_LENGTH
    ]
    for path, value in ((path, value) for path, value, is_stored in texts if is_stored):
        if holds_secret(_name(path), value):
            yield _issue(path, _way_out(path, plain))
        elif any(secret in value for secret in secrets):
            yield _issue(path, "name its variable only under the key that needs it.")


def _issue(path: str, way: str) -> ConfigIssue:
    return ConfigIssue(path, None, f"a secret would be stored with the run; {way}")


def _way_out(path: str, plain: Node) -> str:
    """Say how to give a secret to the part that needs it."""
    parent, _, name = path.rpartition(".")
    values = get(plain, parent) if name.isdecimal() else None
    key = parent if isinstance(values, list) else path
    variable = _variable(_name(key))
    if not _is_in(path, _as_written(plain)):
        return f"read it from the environment in the class, by os.environ['{variable}']."
    value = f"${{oc.env:{variable}}}"
    if isinstance(values, list):
        value = f"[{','.join(['...'] * (len(values) - 1) + [value])}]"
    return f"export it as a variable, and use '{key}={value}'."


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value not in ("", "???")


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()


def without_environment(messages: Iterable[str], config: str = "") -> list[str]:
    """Put `${oc.env:NAME}` in place of values of the environment in messages.

    Args:
        messages: texts that may have such values.
        config: the text of a configuration, whose variables count. Variables that are named like
            secrets always count.
    """
    replaced = list(messages)
    for name in dict.fromkeys([*VARIABLE.findall(config), *filter(is_secret, os.environ)]):
        value = os.environ.get(name, "")
        # PWD looks like the name of a password, but a folder is no secret, and errors show it.
        if len(value) < MIN_HIDDEN_LENGTH or os.path.isdir(value):
            continue
        # A message may quote a value, or show its beginning.
        forms = map(re.escape, dict.fromkeys((value, repr(value)[1:-1], value[:MAX_SHOWN_LENGTH])))
        pattern = re.compile(rf"(?<!\w)(?:{'|'.join(forms)})(?!\w)")
        expression = f"${{oc.env:{name}}}"
        replaced = [pattern.sub(expression, line) for line in replaced]
    return replaced
