"""The jobs that a sweep's overrides stand for."""

from collections.abc import Sequence
from itertools import product

from hydra.core.override_parser.types import Override

from launcher.errors import ConfigError


def expand(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of each job of a sweep: every combination of the values that each key is given.

    Raises:
        ConfigError: a sweep over an interval, which names no values.
    """
    values: dict[str, list[str]] = {}
    for one in overrides:
        key, text = one.get_key_element(), str(one.input_line)
        if not one.is_sweep_override():
            values[key] = [text]
        elif one.is_discrete_sweep():
            values[key] = [f"{key}={value}" for value in one.sweep_string_iterator()]
        else:
            raise ConfigError(f"{text}: names no values; e.g. {key}=0.1,0.2 or {key}=range(1,5).")
    return [list(job) for job in product(*values.values())]
