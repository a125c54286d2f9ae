"""Random numbers that depend only on (seed, epoch, sample), not on workers or ranks."""

from collections.abc import Callable
from typing import Any, TypeVar

from launcher.process.rng import (
    HostState,
    call_isolated,
    host_of,
    host_state,
    host_tree,
    restore_host,
)

T = TypeVar("T")


class StreamGenerators:
    """The CPU generators of a stream's code: its own, or with `is_seeded` False the global ones.

    Its own continue from one `run` to the next, and the global ones are left as they were.
    """

    def __init__(self, is_seeded: bool):
        self.is_seeded = is_seeded
        self._saved: HostState | None = None

    def run(self, function: Callable[[], T]) -> T:
        def inside() -> T:
            result = self._begin(function)
            self._saved = host_state()
            return result

        return call_isolated(inside) if self.is_seeded else function()

    def peek(self, function: Callable[[], T]) -> T:
        """Call a function as `run` does, without advancing the stream's own generators."""
        return call_isolated(lambda: self._begin(function)) if self.is_seeded else function()

    def state(self) -> Any:
        return None if self._saved is None else host_tree(self._saved)

    def load_state(self, state: Any) -> None:
        self._saved = None if state is None or not self.is_seeded else host_of(state)

    def _begin(self, function: Callable[[], T]) -> T:
        if self._saved is not None:
            restore_host(self._saved)
        return function()
