"""Mappings that many runs share, or as their difference from one: runs of a sweep have most values in common."""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from launcher.runs import saved


class Overlay(Mapping[str, str]):
    """A mapping, stored as its difference from a shared one.

    Args:
        base: the shared mapping.
        changed: the other values; None: the key is not there.
    """

    __slots__ = ("base", "changed")

    def __init__(self, base: Mapping[str, str], changed: dict[str, str | None]):
        self.base, self.changed = base, changed

    @classmethod
    def of(cls, base: Mapping[str, str], values: Mapping[str, str]) -> "Overlay":
        changed: dict[str, str | None] = {key: value for key, value in values.items() if base.get(key) != value}
        return cls(base, changed | dict.fromkeys(base.keys() - values.keys()))

    def __getitem__(self, key: str) -> str:
        value = self.changed[key] if key in self.changed else self.base[key]
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        value = self.changed[key] if key in self.changed else self.base.get(key)
        return default if value is None else value

    def __contains__(self, key: object) -> bool:
        return self.changed[key] is not None if key in self.changed else key in self.base

    def __iter__(self) -> Iterator[str]:
        yield from (key for key in self.base if key not in self.changed)
        yield from (key for key, value in self.changed.items() if value is not None)

    def __bool__(self) -> bool:
        return len(self.base) > len(self.changed) or any(True for _ in self)

    def __len__(self) -> int:
        return len(self.base) + sum((value is not None) - (key in self.base) for key, value in self.changed.items())


class Base:
    """The configuration that others are stored as differences from. A section that several others share is compared
    with it once.

    Args:
        values: its values by dotted keys.
    """

    def __init__(self, values: Mapping[str, str]):
        self.values = values
        self._sections: dict[str, dict[str, str]] = defaultdict(dict)
        for key, value in values.items():
            self._sections[key.partition(".")[0]][key] = value
        self._changed = lru_cache(maxsize=1000)(self._changed_in)

    def overlay(self, text: str) -> Overlay:
        """The values of a configuration that is saved as our files are.

        Raises:
            yaml.YAMLError, TypeError, ValueError: it is not, or cannot be parsed.
        """
        sections = saved.sections(text)
        changed: dict[str, str | None] = {}
        names = set()
        for section in sections:
            name, values = self._changed(section)
            names.add(name)
            if values:
                changed.update(values)
        if len(names) < len(sections):
            raise ValueError(text)
        for name in self._sections.keys() - names:
            changed.update(dict.fromkeys(self._sections[name]))
        return Overlay(self.values, changed)

    def _changed_in(self, section: str) -> tuple[str, dict[str, str | None]]:
        name, values = saved.section(section)
        if "." in name:  # its keys may be those of another section
            raise ValueError(section)
        return name, Overlay.of(self._sections.get(name, {}), values).changed


def varying(rows: Sequence[Mapping[str, str]]) -> set[str]:
    """The keys whose value is not the same in all rows, or that not all rows have."""
    if not rows:
        return set()
    base = next((row.base for row in rows if isinstance(row, Overlay)), rows[0])
    overlays = [row if isinstance(row, Overlay) and row.base is base else Overlay.of(base, row) for row in rows]
    count = Counter(chain.from_iterable(row.changed for row in overlays))
    values: dict[str, set[str | None]] = {key: set() if count[key] == len(rows) else {base.get(key)} for key in count}
    for key, value in set().union(*(row.changed.items() for row in overlays)):
        values[key].add(value)
    return {key for key, each in values.items() if len(each) > 1}


SHARED: dict[str, Any] = {}
"""The `versions` and `git` of records: most runs have those of others."""


def shared(record: dict[str, Any]) -> dict[str, Any]:
    """A record that shares with others what is the same, to save memory."""
    record = {sys.intern(key): value for key, value in record.items()}
    if "attempts" in record:
        record["attempts"] = [{sys.intern(key): value for key, value in each.items()} for each in record["attempts"]]
    return record | {
        key: SHARED.setdefault(repr(record[key]), record[key]) for key in ("git", "versions") if key in record
    }
