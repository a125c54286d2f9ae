"""Random numbers that depend only on (seed, epoch, sample), not on workers or ranks."""

from collections.abc import Callable
from typing import Any, TypeVar

from launcher.process.rng import HostState, host_of, host_state, host_tree, isolated, restore_host

T = TypeVar("T")


class PrivateGenerators:
    """A stream's own CPU generators, which continue from one `run` to the next."""

    def __init__(self) -> None:
        self._saved: HostState | None = None

    def run(self, function: Callable[[], T]) -> T:
        """Call `function` with these generators, and restore the global ones."""

        def inside() -> T:
            result = self._begin(function)
            self._saved = host_state()
            return result

        return isolated(inside)

    def peek(self, function: Callable[[], T]) -> T:
        """Call a function as `run` does, without advancing these generators."""
        return isolated(lambda: self._begin(function))

    def state(self) -> Any:
        return None if self._saved is None else host_tree(self._saved)

    def load_state(self, state: Any) -> None:
        self._saved = None if state is None else host_of(state)

    def _begin(self, function: Callable[[], T]) -> T:
        if self._saved is not None:
            restore_host(self._saved)
        return function()


class GlobalGenerators:
    """The global generators, in the place of private ones: nothing is restored."""

    def run(self, function: Callable[[], T]) -> T:
        return function()

    peek = run

    def state(self) -> Any:
        return None

    def load_state(self, state: Any) -> None: ...
