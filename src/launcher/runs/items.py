"""A sequence of runs in a program."""

from collections.abc import Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class Items(Sequence[T]):
    """A sequence whose slices are lists, for classes with methods over all items."""

    _items: list[T]
    """Set by the constructor of a subclass."""

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._items[index]
