"""Mappings that many runs share, or as their difference from one: runs of a sweep have most values in common."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any


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


def varying(rows: Sequence[Mapping[str, str]]) -> set[str]:
    """The keys whose value is not the same in all rows, or that not all rows have."""
    overlays = [row for row in rows if isinstance(row, Overlay)]
    if len(overlays) < len(rows) or len({id(row.base) for row in overlays}) != 1:
        return {key for key in {key for row in rows for key in row} if len({row.get(key) for row in rows}) > 1}
    base = overlays[0].base
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
