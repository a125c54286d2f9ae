"""Calls hooks: on an event only the hooks that handle it, and with the logged records."""

import logging
from collections.abc import Callable, Sequence
from inspect import signature
from itertools import takewhile

from launcher.config.messages import describe_type
from launcher.config.schema.value_types import check_call
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.base import EVENTS, BaseHook, check_event, overrides
from launcher.hooks.records import flatten
from launcher.hooks.view import Records, TrainState

Call = Callable[..., None]


class HookCaller:
    """Interface of any trainer for its hooks: events, logs, and the step."""

    def __init__(self, state: TrainState, logger: logging.Logger):
        self.state = state
        self.logger = logger
        self.hooks: list[BaseHook] = []
        self._events: dict[str, list[Call]] = {event: [] for event in EVENTS}

    def fire(self, event: str, *args: object, **options: object) -> None:
        for call in self._events[event]:
            call(self, *args, **options)

    def close_hooks(self, has_ended: bool) -> None:
        """Close every hook, even after another has failed to close.

        The first error is raised if training itself has ended well. The others are logged.
        """
        errors: list[Exception] = []
        for call in self._events["on_close"]:
            try:
                call(self)
            except Exception as error:
                errors.append(error)
        for other in errors[1:] if has_ended else errors:
            trace = None if isinstance(other, TrainingError) else other
            self.logger.error("At the end: %s: %s", type(other).__name__, other, exc_info=trace)
        if errors and has_ended:
            raise errors[0]

    def log(self, records: Records, dry_run: bool = False) -> None:
        """Pass nested records of numbers to every hook. A `dry_run` only describes the output."""
        if not dry_run:
            self.state.metrics.update(flatten(records))
        self.fire("on_log", records, dry_run=dry_run)

    def log_scalars(self, records: Records, dry_run: bool = False) -> None:
        """Like `log`, by its name in trainloop 0.11."""
        self.log(records, dry_run=dry_run)

    def log_images(self, records: Records, dry_run: bool = False) -> None:
        """Pass nested records of images to every hook, see `BaseHook.on_log_images`."""
        self.fire("on_log_images", records, dry_run=dry_run)

    def log_histograms(self, records: Records, dry_run: bool = False) -> None:
        """Pass nested records of tensors or arrays to every hook. All ranks call it."""
        self.fire("on_log_histograms", records, dry_run=dry_run)

    def log_text(self, records: Records, dry_run: bool = False) -> None:
        """Pass nested records of texts to every hook."""
        self.fire("on_log_text", records, dry_run=dry_run)

    @property
    def step(self) -> int:
        """The current step, counted from 1."""
        return self.state.step

    @step.setter
    def step(self, value: int) -> None:
        self.state.step = value

    @property
    def max_steps(self) -> int:
        return self.state.max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self.state.max_steps = value

    @property
    def is_last_step(self) -> bool:
        """True if training ends with this step, which is always logged, evaluated and saved."""
        return self.state.is_at_end()


def check_hook(hook: object, source: str) -> None:
    """Check that an object from a source is a hook, with methods that are named like events."""
    if not isinstance(hook, BaseHook):
        advice = ", so create one" if isinstance(hook, type) and issubclass(hook, BaseHook) else ""
        text = f"the class {hook.__name__}" if isinstance(hook, type) else describe_type(hook)
        raise ConfigError(
            f"{source}: a hook should be an instance of a launcher.BaseHook; this is"
            f" {text}{advice}."
        )
    owner = f"{source}: {type(hook).__name__}"
    for name in dir(type(hook)):
        if name.startswith("on_") and callable(getattr(hook, name)):
            check_event(name, owner)
    for event in EVENTS:
        if overrides(hook, event):
            arguments = list(signature(getattr(BaseHook, event)).parameters.values())[1:]
            names = [each.name for each in arguments if each.default is each.empty]
            named = {each.name: each.default for each in arguments[len(names) :]}
            check_call(f"{owner}.{event}", getattr(hook, event), *names, **named)


def calls(hooks: Sequence[BaseHook]) -> dict[str, list[Call]]:
    """List the methods that hooks override by event, in order, after hooks that run first."""
    hooks = sorted(hooks, key=lambda hook: not hook.runs_first)
    table = {
        event: [getattr(hook, event) for hook in hooks if overrides(hook, event)]
        for event in EVENTS
    }
    return table | {"on_log": [call for hook in hooks if (call := _log_method(hook)) is not None]}


def _log_method(hook: BaseHook) -> Call | None:
    """Return `on_log` or `on_log_scalars`, whichever was overridden last.

    A function set on the instance comes before a method of the most derived class.
    """
    methods: dict[str, Call] = {name: getattr(hook, name) for name in ("on_log", "on_log_scalars")}
    for name, method in methods.items():
        if getattr(method, "__func__", None) is not getattr(type(hook), name):
            return method
    for owner in takewhile(lambda owner: owner is not BaseHook, type(hook).__mro__):
        for name, method in methods.items():
            if name in vars(owner):
                return method
    return None
