"""Values that come from the environment. A run stores their interpolations.

It is resolved again where the run starts. The run's id is a hash over the resolved values, so a
variable that decides the numbers counts.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from launcher.config.messages import ConfigIssue
from launcher.config.tree import get, is_interpolation, walk
from launcher.rundir.secret_patterns import holds_secret, is_secret

ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:")
VARIABLE = re.compile(r"oc\.env\s*:\s*(\w+)")
SHORTEST = 4
"""Minimum length of a variable's value that messages do not show. A shorter one is any number."""
LONGEST = 50
"""Characters of a long value that a message shows for certain."""
REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*(\.*[A-Za-z_][\w.\[\]]*)\s*(?:,[^${}]*)?\}")
DEEPEST = 40
RESOLVED = (
    "paths",
    "trainer",
    "run.dir",
    "run.id",
    "run.name",
    "run.resume",
    "run.identity_exclude",
)
"""Keys that are stored resolved: where the run is stored, and the lengths that listings read."""


def as_stored(written: Mapping[str, object], resolved: Mapping[str, object]) -> dict[str, object]:
    """Return a resolved configuration with expressions in place of secrets.

    An expression refers to no other key.
    """
    nodes = {key: value for key, value in written.items() if key in resolved}
    if not any(_may_be_kept(path, value) for path, value in walk(nodes, lists=True)):
        return dict(resolved)
    stored: dict[str, object] = _Expressions(written, resolved).of(
        dict(written), dict(resolved), ()
    )
    return stored


def _may_be_kept(path: str, value: Any) -> bool:
    return is_interpolation(value) and ("oc.env" in value or is_secret(path.rpartition(".")[2]))


def secret_issues(tree: Mapping[str, object]) -> Iterator[ConfigIssue]:
    """Find secrets that are written out, and would be stored with the run."""
    variables = get(tree, "hydra.job.env_set")
    values = [*walk({key: value for key, value in tree.items() if key != "hydra"}, lists=True)]
    values += walk(variables, "hydra.job.env_set") if isinstance(variables, Mapping) else ()
    for path, value in values:
        name = path.rpartition(".")[2]
        # The identity repeats the other values.
        if not isinstance(value, str) or value in ("", "???") or path == "run.identity":
            continue
        literal = _literal(value, path, tree)
        if literal is None or not holds_secret(name, literal):
            continue
        variable = re.sub(r"\W", "_", name).upper()
        if path.startswith("hydra."):
            text = (
                "a secret would be stored with the run; set the variable in the shell: export"
                f" {variable}=..."
            )
        else:
            use = f"'{path}=${{oc.env:{variable}}}'"
            text = f"a secret would be stored with the run; export it as a variable, and use {use}."
        yield ConfigIssue(path, None, text)


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
        if len(value) < SHORTEST:
            continue
        # A message may quote a value, or show its beginning.
        forms = map(re.escape, dict.fromkeys((value, repr(value)[1:-1], value[:LONGEST])))
        pattern = re.compile(rf"(?<!\w)(?:{'|'.join(forms)})(?!\w)")
        expression = f"${{oc.env:{name}}}"
        replaced = [pattern.sub(expression, line) for line in replaced]
    return replaced


def is_expression(text: str, key: object) -> bool:
    """Return whether a text of a stored configuration is an interpolation."""
    return ENVIRONMENT.search(text) is not None or is_secret(str(key))


def _literal(value: str, path: str, tree: Mapping[str, Any]) -> str | None:
    """Return the text that a value is or refers to, or None if it comes from a resolver."""
    for _ in range(DEEPEST):
        if not is_interpolation(value):
            return value
        match = REFERENCE.fullmatch(value)
        target = None if match is None else get(tree, _absolute(match[1], path.split(".")[:-1]))
        if not isinstance(target, str):
            return None
        value = target
    return None


class _Expressions:
    """Values of a configuration with interpolations (`tree`), and after resolution."""

    def __init__(self, tree: Mapping[str, object], resolved: Mapping[str, object]):
        self.tree, self.resolved = tree, resolved

    def of(self, written: Any, resolved: object, keys: tuple[str, ...], depth: int = 0) -> Any:
        """A node or a value as it is stored."""
        if ".".join(keys) in RESOLVED or depth > DEEPEST:
            return resolved
        if isinstance(written, Mapping) and isinstance(resolved, Mapping):
            return {
                key: self.of(written.get(key), value, (*keys, str(key)), depth + 1)
                for key, value in resolved.items()
            }
        if (
            isinstance(written, list)
            and isinstance(resolved, list)
            and len(written) == len(resolved)
        ):
            return [
                self.of(item, value, (*keys, str(index)), depth + 1)
                for index, (item, value) in enumerate(zip(written, resolved, strict=True))
            ]
        if not is_interpolation(written):
            return resolved
        # It is a reference to a whole node.
        if isinstance(resolved, Mapping | list):
            match = REFERENCE.fullmatch(written)
            path = None if match is None else _absolute(match[1], keys[:-1])
            node = None if path is None else get(self.tree, path)
            return (
                resolved
                if node is None
                else self.of(node, resolved, tuple(str(path).split(".")), depth + 1)
            )
        expression = self.expression(written, keys[:-1], 0)
        is_kept = ENVIRONMENT.search(expression) or (
            keys and is_secret(keys[-1]) and is_interpolation(expression)
        )
        return expression if is_kept else resolved

    def expression(self, written: str, parents: tuple[str, ...], depth: int) -> str:
        """Replace references to other keys in an interpolation by the values of these keys."""

        def replace(match: re.Match[str]) -> str:
            path = _absolute(match[1], parents)
            value = get(self.tree, path)
            if (
                is_interpolation(value)
                and depth < DEEPEST
                and not {path, path.partition(".")[0]} & set(RESOLVED)
            ):
                inner = self.expression(value, tuple(path.split(".")[:-1]), depth + 1)
                if ENVIRONMENT.search(inner):
                    return inner
            known = get(self.resolved, path)
            return match[0] if known is None or isinstance(known, Mapping | list) else str(known)

        return REFERENCE.sub(replace, written)


def _absolute(path: str, parents: Sequence[str]) -> str:
    """The dotted path of a reference. `.x` is in the same node, `..x` one node higher."""
    name = path.lstrip(".")
    up = len(path) - len(name)
    name = name.replace("[", ".").replace("]", "")
    if not up:
        return name
    kept = list(parents)[: len(parents) - (up - 1)]
    return ".".join([*kept, name])
