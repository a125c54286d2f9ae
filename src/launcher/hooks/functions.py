"""Plain functions as a hook."""

from collections.abc import Callable
from functools import wraps
from pkgutil import resolve_name

from launcher.errors import ConfigError
from launcher.hooks.base import EVENTS, BaseHook


class FunctionHook(BaseHook):
    """Calls functions on events, with the arguments of the method of that name in `BaseHook`.

    Args:
        functions: a function, or its dotted path, by the name of its event, such as
            `on_after_step=print_step`.

    Examples:
        >>> class Printing(Line):
        ...     def build_hooks(self):
        ...         return [FunctionHook(on_after_step=lambda trainer: print("step", trainer.step))]
        >>> Printing(max_steps=1, device="cpu").train()
        step 1
    """

    def __init__(self, **functions: Callable[..., None] | str):
        self._functions: dict[str, list[Callable[..., None]]] = {}
        for event, function in functions.items():
            self.on(event, function)

    def on(self, event: str, function: Callable[..., None] | str) -> "FunctionHook":
        """Add a function, which is called after the others of its event."""
        if event not in EVENTS:
            raise ConfigError(f"{event}: no such event; the events are {', '.join(EVENTS)}.")
        functions = self._functions.setdefault(event, [])
        functions.append(_import(event, function) if isinstance(function, str) else function)

        @wraps(functions[0])
        def call_all(*args: object, **options: object) -> None:
            for function in functions:
                function(*args, **options)

        setattr(self, event, call_all)
        return self


def _import(event: str, path: str) -> Callable[..., None]:
    try:
        function: Callable[..., None] = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{event}={path}: there is no such function ({error}).") from error
    return function
