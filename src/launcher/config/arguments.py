"""The bounds of a signature's annotations, checked in a call from Python."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

from launcher.config.fits import bounds, describe, fits
from launcher.config.messages import show


def check_bounds(
    owner: str,
    function: Callable[..., object],
    positional: Sequence[object],
    named: Mapping[str, object],
) -> None:
    """Raise a ValueError if a number or text is outside the bounds of its annotation."""
    try:
        signature = inspect.signature(function, eval_str=True)
        values = signature.bind(*positional, **named).arguments
    # The call itself reports missing arguments.
    except (TypeError, NameError):
        return
    for name, value in values.items():
        if type(value) not in (int, float, str):
            continue
        kinds = [
            kind
            for kind in _bounded(signature.parameters[name].annotation)
            if fits(value, get_args(kind)[0])
        ]
        if kinds and not any(fits(value, kind) for kind in kinds):
            raise ValueError(f"{owner}: {name}={show(value)}: should be {describe(kinds[0])}.")


def _bounded(annotation: object) -> Iterator[object]:
    """The members of a type that have bounds."""
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _bounded(member)
    elif get_origin(annotation) is Annotated and bounds(annotation):
        yield annotation
