"""The places of a project and its runs, which are not part of a run's identity.

A reference that contains such a place (`${paths.outputs}/tokens`, `${hydra:runtime.cwd}/data`) is
hashed without it, so that two clones of a project have equal ids. All others are hashed as they
resolve.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

PREFIXES = (
    "${run.",
    "${paths.",
    "${hydra",
    "${launcher.id",
    "${launcher.name",
    "${launcher.path",
)
"""Beginnings of interpolations that may contain a place."""

PLACEHOLDER = "<id>"
"""The value of `run.id` in values that are hashed, and refer to it."""

OF_A_START = "${run.resume}"
"""The setting of a start to which `hooks.checkpointing.load` refers. It trains nothing."""

PLACE = re.compile(r"<(?:id|run|outputs|folder|name)>")


@dataclass(frozen=True)
class Locations:
    """The places of a configuration: a text, and what stands for it in an identity."""

    absolute: dict[str, str] = field(default_factory=dict)
    relative: dict[str, str] = field(default_factory=dict)
    """Places that count only in references to `run`, `paths` and Hydra's node."""
    name: str = ""
    """Name of the run, which is a part of a place after another one."""

    @classmethod
    def of(cls, config: DictConfig) -> "Locations":
        """Return the places of a configuration. Call it `without_id`."""
        named = {_text(config, "run.id"): PLACEHOLDER}
        for key, name in (("run.dir", "<run>"), ("paths.outputs", "<outputs>")):
            place = _text(config, key)
            if place:
                named |= dict.fromkeys((place, os.path.abspath(place)), name)
        named = dict.fromkeys(_current_folder(), "<folder>") | named
        places = {text.rstrip("/"): name for text, name in named.items() if text.strip("/")}
        absolute = {text: name for text, name in places.items() if os.path.isabs(text)}
        return cls(absolute, places, _text(config, "run.name"))

    def hide(self, written: str, value: object) -> object:
        """Return what is hashed of a reference.

        Args:
            written: the reference.
            value: what it resolves to.
        Returns:
            The value, and a text with each place replaced. If nothing else is left of the
            references in it, it is the text as written.
        """
        if written == OF_A_START:
            return written
        if not isinstance(value, str):
            return value
        is_of_a_place = any(prefix in written for prefix in PREFIXES)
        hidden = _replace(value, self.relative if is_of_a_place else self.absolute)
        if hidden == value and PLACEHOLDER not in value:
            return value
        if not is_of_a_place:
            return hidden
        hidden = _replace(hidden, {self.name: "<name>"} if self.name else {})
        if PLACE.sub("<>", hidden) == _without_references(written):
            return written
        return hidden

    def contain(self, node: object) -> bool:
        """Return whether a text in a resolved node has a place."""
        if isinstance(node, str):
            return PLACEHOLDER in node or _replace(node, self.relative) != node
        if isinstance(node, dict):
            return any(map(self.contain, node.values()))
        return isinstance(node, list) and any(map(self.contain, node))


def _current_folder() -> Iterator[str]:
    """Yield the current folder, by its real path and as the shell names it."""
    folder = os.getcwd()
    yield folder
    shell = os.environ.get("PWD", "")
    if os.path.isabs(shell) and os.path.realpath(shell) == os.path.realpath(folder):
        yield shell


def _text(config: DictConfig, key: str) -> str:
    try:
        value: Any = OmegaConf.select(config, key)
    except OmegaConfBaseException:
        return ""
    return "" if value is None else str(value)


def _replace(text: str, places: dict[str, str]) -> str:
    """Replace places that are whole parts of a path; an id may be a part of a name."""
    if not any(place in text for place in places):
        return text
    # A longer place may contain a shorter one.
    by_length = sorted(places, key=len, reverse=True)
    patterns = (
        _between("A-Za-z0-9" if places[place] == PLACEHOLDER else r"\w.<>-", place)
        for place in by_length
    )
    return re.sub("|".join(patterns), lambda match: places[match[0]], text)


def _between(others: str, place: str) -> str:
    """Return a pattern for a place that is not next to other characters."""
    return f"(?<![{others}]){re.escape(place)}(?![{others}])"


def _without_references(written: str) -> str:
    """Replace each `${...}` of a text, with what is nested in it, by `<>`."""
    before = ""
    while before != written:
        before = written
        written = re.sub(r"\$\{[^${}]*\}", "<>", written)
    return written
