"""The search space, which converts ranges in Hydra's syntax to Optuna's distributions."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from launcher.config.compose.grid import list_values
from launcher.config.compose.overrides import is_setting
from launcher.config.messages import hint, show, to_override_text
from launcher.config.tree import leaves
from launcher.errors import ConfigError
from launcher.rundir.secret_patterns import holds_secret
from launcher.runs.trials import Value, round_value

Space = dict[str, BaseDistribution]


def read_space(loader: Any, arguments: Sequence[str], ranges: object) -> tuple[Space, list[str]]:
    """Return the search space, and the overrides that all trials share.

    A key of `ranges` that the command line sets is not in the space.
    """
    if not isinstance(ranges, Mapping):
        raise ConfigError(
            f"hpo.space={show(ranges)}: should be a mapping of keys to ranges; e.g."
            " hpo.space.optimizer.lr='interval(0.01,0.1)'."
        )
    parser = OverridesParser.create(config_loader=loader)
    for setting in parser.parse_overrides([text for text in arguments if is_setting(text)]):
        if setting.is_sweep_override():
            raise ConfigError(
                f"{setting.input_line}: is a setting of the whole search; give it one value."
            )
    typed = parser.parse_overrides([text for text in arguments if not is_setting(text)])
    set_keys = {bare(override.get_key_element()) for override in typed}
    swept = [override for override in typed if override.is_sweep_override()]
    for key, value in leaves(ranges).items():
        if bare(key) not in set_keys:
            swept.append(_parse_range(parser, key, value))
    space = {override.get_key_element(): distribution(override) for override in swept}
    fixed = [str(override.input_line) for override in typed if not override.is_sweep_override()]
    if not space:
        raise ConfigError(
            "hydra/sweeper=optuna: there is nothing to search; give a key a range, e.g. "
            "'optimizer.lr=tag(log,interval(1e-4,1e-1))'."
        )
    return space, fixed


def _parse_range(parser: OverridesParser, key: str, value: object) -> Override:
    """Parse a range of `hpo.space`."""
    try:
        override = parser.parse_override(f"{key}={_range_text(value)}")
    except HydraException as error:
        raise ConfigError(
            f"hpo.space: {key}={show(value)} is not a range; e.g. {key}: interval(0,1)."
        ) from error
    if not override.is_sweep_override():
        raise ConfigError(f"hpo.space: {key}={show(value)} is one value; e.g. {key}: choice(1,2).")
    return override


def bare(key: str) -> str:
    return key.lstrip("+~")


def _range_text(value: object) -> str:
    if isinstance(value, list):
        return f"choice({','.join(map(to_override_text, value))})"
    return to_override_text(value)


def distribution(override: Override) -> BaseDistribution:
    """Make Optuna's distribution of a range."""
    value: Any = override.value()
    key = override.get_key_element()
    if isinstance(value, IntervalSweep):
        low, high = value.start, value.end
        is_log = "log" in value.tags
        if low is None or high is None or not low < high or (is_log and low <= 0):
            least = "a number above 0" if is_log else "a number"
            raise ConfigError(
                f"{override.input_line}: should be a range from {least} to a larger one; e.g."
                f" {key}=interval(0.1,0.5)."
            )
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=is_log)
        return FloatDistribution(float(low), float(high), log=is_log)
    if hasattr(value, "shuffle"):
        # A random order would make another study of the same command.
        value.shuffle = False
    if isinstance(value, RangeSweep):
        numbers = list(value.range())
        if (
            len(numbers) > 1
            and all(isinstance(number, int) for number in numbers)
            and numbers[0] < numbers[-1]
        ):
            return IntDistribution(
                int(numbers[0]), int(numbers[-1]), step=int(numbers[1]) - int(numbers[0])
            )
    choices = list(dict.fromkeys(list_values(override)))
    if any(holds_secret(key.rpartition(".")[2], choice) for choice in choices):
        raise ConfigError(f"{key}: a secret would be stored with each trial; do not search it.")
    if not choices:
        raise ConfigError(f"{override.input_line}: has no values; e.g. {key}=1,2.")
    return CategoricalDistribution(choices)


def overrides_of(params: Mapping[str, Value]) -> list[str]:
    return [f"{key}={to_override_text(value)}" for key, value in params.items()]


def check_enqueued(params: Mapping[str, object], space: Space) -> dict[str, object]:
    """Return the values of a trial of `hpo.first`."""
    checked: dict[str, Any] = {}
    for key, value in params.items():
        if key not in space:
            raise ConfigError(f"hpo.first: {key} is not in the search space{hint(key, space)}")
        value = (
            to_override_text(value) if isinstance(space[key], CategoricalDistribution) else value
        )
        if not is_within(value, space[key]):
            raise ConfigError(f"hpo.first: {key}={show(value)} is outside of its range.")
        checked[key] = value
    return checked


def is_within(value: Any, among: BaseDistribution) -> bool:
    if isinstance(among, CategoricalDistribution):
        return value in among.choices
    assert isinstance(among, IntDistribution | FloatDistribution)
    kinds = int if isinstance(among, IntDistribution) else int | float
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not among.low <= value <= among.high:
        return False
    return isinstance(among, FloatDistribution) or (value - among.low) % among.step == 0


def point(space: Space, share: float) -> dict[str, Value]:
    """A value for each key, at this share (0 to 1) of its range."""
    return {key: value_at(dist, share) for key, dist in space.items()}


def value_at(among: BaseDistribution, share: float) -> Value:
    if isinstance(among, CategoricalDistribution):
        return str(among.choices[int(share * (len(among.choices) - 1))])
    if isinstance(among, IntDistribution):
        return among.low + int(share * ((among.high - among.low) // among.step)) * among.step
    assert isinstance(among, FloatDistribution)
    return round_value(among.low + share * (among.high - among.low), among)
