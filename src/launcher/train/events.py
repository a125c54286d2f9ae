"""Which hooks are called on an event: only those that do something on it."""

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.hooks.base import BaseHook, overrides
from launcher.models.output import described

EVENTS = tuple(name for name in vars(BaseHook) if name.startswith("on_") and name != "on_log_scalars")
Call = Callable[..., None]


def check_hook(hook: Any, source: str) -> None:
    """
    Args:
        source: where the hook comes from, for messages.
    Raises:
        ConfigError: it is not a hook, or has a method for an event that does not exist.
    """
    if not isinstance(hook, BaseHook):
        advice = ", so create one" if isinstance(hook, type) and issubclass(hook, BaseHook) else ""
        kind = f"the class {hook.__name__}" if isinstance(hook, type) else described(hook)
        raise ConfigError(f"{source}: a hook should be an instance of a launcher.BaseHook; this is {kind}{advice}.")
    known = {*EVENTS, "on_log_scalars"}
    for name in sorted({*dir(type(hook)), *vars(hook)}):
        if name.startswith("on_") and name not in known and callable(getattr(hook, name)):
            raise ConfigError(
                f"{source}: {type(hook).__name__}.{name} is not an event{hint(name, known)} A method that is called "
                "by other code needs a name without on_."
            )


def calls(hooks: Sequence[BaseHook]) -> dict[str, list[Call]]:
    """The methods to call for each event, in the order of the hooks, those that measure first. A method that does
    nothing is left out, since its call would cost as much as any other."""
    hooks = in_order(hooks)
    table = {event: [getattr(hook, event) for hook in hooks if overrides(hook, event)] for event in EVENTS}
    return table | {"on_log": [call for hook in hooks if (call := _log_method(hook)) is not None]}


def in_order(hooks: Sequence[BaseHook]) -> list[BaseHook]:
    return sorted(hooks, key=lambda hook: not hook.measures)


class Schedule:
    """The calls of an event that happens at each step. A hook can ask to be called only every N steps
    (`called_every`)."""

    def __init__(self, hooks: Sequence[BaseHook], event: str):
        pairs = [
            (_called_every(hook, event), getattr(hook, event)) for hook in in_order(hooks) if overrides(hook, event)
        ]
        self._pairs = pairs
        self._always = [call for every, call in pairs if every == 1]
        rare = [every for every, _ in pairs if every != 1]
        self._divisor = gcd(*rare)  # 0: none
        self._all = [call for _, call in pairs]

    def at(self, step: int, everything: bool) -> list[Call]:
        """The calls at a step."""
        if everything or step == 0 or not self._divisor:
            return self._all
        if step % self._divisor:
            return self._always
        return [call for every, call in self._pairs if step % every == 0]


def _called_every(hook: BaseHook, event: str) -> int:
    """The hook's `called_every`. If a derived class or the instance has another method for the event, it is 1."""
    owners = [owner for owner in (hook, *type(hook).__mro__) if {event, "called_every"} & vars(owner).keys()]
    return hook.called_every(event) if "called_every" in vars(owners[0]) else 1


def _log_method(hook: BaseHook) -> Call | None:
    """`on_log` or `on_log_scalars`, whichever was overridden last: on the instance, else in the most derived class."""
    for owner in (hook, *type(hook).__mro__):
        if owner is BaseHook:
            break
        for name in ("on_log", "on_log_scalars"):
            if name in vars(owner):
                method: Call = getattr(hook, name)
                return method
    return None
