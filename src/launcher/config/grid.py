"""The jobs of a sweep."""

from collections.abc import Sequence
from itertools import product

from hydra.core.override_parser.types import Override

from launcher.errors import ConfigError


def expand(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of each job: every combination of the keys' values.

    Raises:
        ConfigError: a sweep over an interval, which has no list of values.
    """
    values: dict[str, list[str]] = {}
    for override in overrides:
        key, text = override.get_key_element(), str(override.input_line)
        if not override.is_sweep_override():
            values[key] = [text]
        elif override.is_discrete_sweep():
            values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise ConfigError(f"{text}: has no list of values; e.g. {key}=0.1,0.2 or {key}=range(1,5).")
    return [list(job) for job in product(*values.values())]
