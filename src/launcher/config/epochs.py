"""Numbers of epochs in place of numbers of steps: `1epoch`, `0.5epoch`, `2epochs`."""

import re
from collections.abc import Callable
from fractions import Fraction

from launcher.config.tree import mapped

PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*epochs?")


def number_of_epochs(value: object) -> Fraction | None:
    """Return the number in a text such as `2epochs`, or None."""
    match = PATTERN.fullmatch(value.strip()) if isinstance(value, str) else None
    return Fraction(match[1]) if match else None


def with_epochs(tree: object, convert: Callable[[Fraction, str], object]) -> object:
    """A value, list or mapping in which each number of epochs is converted, with its dotted key."""

    def change(value: object, keys: tuple[object, ...]) -> object:
        epochs = number_of_epochs(value)
        return value if epochs is None else convert(epochs, ".".join(map(str, keys)))

    return mapped(tree, change)
