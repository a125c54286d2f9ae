"""Which hooks are called on an event: only those that do something on it."""

from collections.abc import Callable, Sequence

from launcher.hooks.base import BaseHook, overrides

EVENTS = tuple(name for name in vars(BaseHook) if name.startswith("on_") and name != "on_log_scalars")
Call = Callable[..., None]


def calls(hooks: Sequence[BaseHook]) -> dict[str, list[Call]]:
    """The methods to call for each event, in the order of the hooks, those that measure first. An empty call costs as
    much as any other."""
    hooks = sorted(hooks, key=lambda hook: not hook.measures)
    table = {event: [getattr(hook, event) for hook in hooks if overrides(hook, event)] for event in EVENTS}
    return table | {"on_log": [call for hook in hooks if (call := _log_method(hook)) is not None]}


def _log_method(hook: BaseHook) -> Call | None:
    """`on_log` or `on_log_scalars`, whichever was overridden last: on the instance, else in the most derived class."""
    for owner in (hook, *type(hook).__mro__):
        if owner is BaseHook:
            break
        for name in ("on_log", "on_log_scalars"):
            if name in vars(owner):
                return getattr(hook, name)
    return None
