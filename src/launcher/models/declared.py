"""Methods that a model declares to Launcher. Nothing else of a plain module is called."""

from collections.abc import Callable, Iterable
from inspect import getattr_static
from typing import Any

from torch import nn

from launcher.config.messages import describe_type
from launcher.config.schema.value_types import check_call
from launcher.errors import ConfigError
from launcher.models.base import Model

KEY = "launcher_methods"
"""The class attribute with which a plain module declares methods."""
METHODS: dict[str, tuple[str, ...] | None] = {
    "init_weights": (),
    "num_targets": ("batch",),
    "shard_units": (),
    "logits": None,
}
"""The methods that Launcher calls besides `forward`, with their arguments, which are checked unless
they are None."""


def declares(model: nn.Module, name: str) -> bool:
    """Return whether a model has a method for Launcher: a `Model`, or a class that names it."""
    if isinstance(model, Model):
        return hasattr(Model, name) or callable(getattr(model, name, None))
    return name in _declared_names(model)


def declared_method(model: nn.Module, name: str, key: str = "model") -> Callable[..., Any] | None:
    """Return a model's method, or None if it has none. An attribute is not a method.

    Args:
        model: the unwrapped model.
        name: one of `METHODS`.
        key: the model's place in the configuration, for messages. Default `model`.
    Raises:
        ConfigError: the model has such a method and does not declare it, or it cannot be called.
    """
    class_name = type(model).__name__
    if declares(model, name):
        method = getattr(model, name, None)
        if not callable(method):
            found = "there is none" if method is None else f"it is {describe_type(method)}"
            raise ConfigError(f"{key}: {class_name}.{name} should be a method; {found}.")
        arguments = METHODS[name]
        if arguments is not None:
            check_call(f"{key}: {class_name}.{name}", method, *arguments)
        return method  # type: ignore[no-any-return]
    if not hasattr(model, KEY) and _is_method(getattr_static(model, name, None)):
        derive = "derive it from launcher.Model, or " if key == "model" else ""
        raise ConfigError(
            f"{key}: {class_name} has a method {name}, which Launcher calls only if it is declared;"
            f' {derive}give the class (or a subclass) {KEY} = ("{name}",), or {KEY} = () if the'
            " method is not for Launcher."
        )
    return None


def declared_units(model: nn.Module) -> list[nn.Module]:
    """Return the units of a model's declared `shard_units()`, or none."""
    units_of = declared_method(model, "shard_units")
    return [] if units_of is None else list(units_of())


def check_declared(model: nn.Module, key: str = "model", names: Iterable[str] = METHODS) -> None:
    """Check that a model declares each of its methods with one of these names."""
    for name in names:
        declared_method(model, name, key)


def constructor_makes_weights(model: nn.Module) -> bool:
    """Return whether the initial weights are the constructor's, which then needs real values."""
    if isinstance(model, Model):
        return model.constructor_makes_weights
    return not declares(model, "init_weights")


def is_language_model(model: nn.Module) -> bool:
    """Return whether the attribute is True. A plain module may use the name otherwise."""
    return getattr(model, "is_language_model", False) is True


def _declared_names(model: nn.Module) -> tuple[str, ...]:
    names = getattr(model, KEY, ())
    if not isinstance(names, tuple | list) or not all(name in list(METHODS) for name in names):
        raise ConfigError(
            f"model: {type(model).__name__}.{KEY}={names!r}: should be a tuple of some of"
            f' {", ".join(METHODS)}; e.g. ("num_targets",).'
        )
    return tuple(names)


def _is_method(attribute: object) -> bool:
    """Return whether an attribute, as it is stored, is a function; not a submodule or property."""
    if isinstance(attribute, staticmethod | classmethod):
        return True
    return callable(attribute) and not isinstance(attribute, nn.Module)
