"""The presets of `guard.yaml`, and their agreement with each other."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.proof.side import Preset, Side

FILE = Path("guard.yaml")
KEYS = ("steps", "presets", "equal")
STEPS = 20
EXAMPLE = "presets: {first: [experiment=first]}"
EQUAL = (
    "equal: should have lists of presets, such as [none, ddp], or {presets: [small, large], close:"
    " 1e-6}."
)
LOSS = "train/loss"


@dataclass(frozen=True)
class EqualPresets:
    """Presets whose trainings must agree, such as strategies or sizes of micro-batches.

    Args:
        names: the presets.
        close: the largest relative difference of their losses. Default None: losses, weights and
            moments are bitwise identical.
    """

    names: tuple[str, ...]
    close: float | None = None

    def disagreement(self, sides: Sequence[Side]) -> str | None:
        """Return how the first of the trainings and another one disagree, or None if all agree."""
        for side, name in zip(sides[1:], self.names[1:], strict=True):
            for place in {**sides[0].values, **side.values}:
                first, other = (each.values.get(place) for each in (sides[0], side))
                # Random states are of each rank.
                if place.kind not in ("metrics", "tensor") or first == other:
                    continue
                if self.close is None or (place.name == LOSS and not self._is_close(first, other)):
                    text = f"step {place.step}: {place.name} {other} and {first}"
                    return f"{name} and {self.names[0]} differ: {text}."
        return None

    def _is_close(self, first: object, other: object) -> bool:
        if self.close is None or first is None or other is None:
            return False
        one = float(str(first))
        two = float(str(other))
        return abs(one - two) <= self.close * abs(one)


def read_file(steps: int | None) -> tuple[list[Preset], list[EqualPresets]]:
    """Read `guard.yaml` in the current folder; an option's number of steps replaces its own."""
    try:
        content = yaml.safe_load(FILE.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"guard: there is no {FILE} here; name a preset, e.g. experiment=first, or write one:"
            f" {EXAMPLE}"
        ) from None
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{FILE}: cannot be read as YAML: {problem}.") from error
    listed = content.get("presets") if isinstance(content, dict) else None
    if not isinstance(listed, dict):
        raise ConfigError(f"{FILE}: presets: should be a mapping of presets; e.g. {EXAMPLE}")
    for key in content:
        _check(key in KEYS, f"no key {key}{hint(str(key), KEYS)}")
    own = content.get("steps", STEPS)
    is_count = type(own) is int and own > 0
    _check(is_count, f"steps={own!r} should be a number of steps, e.g. {STEPS}.")
    for name, words in listed.items():
        is_list = isinstance(words, list) and all(isinstance(word, str) for word in words)
        _check(is_list, f"presets.{name}: should be a list of overrides; e.g. {EXAMPLE}")
    entries = content.get("equal", [])
    _check(isinstance(entries, list), EQUAL)
    presets = [Preset(str(name), tuple(words), steps or own) for name, words in listed.items()]
    return presets, [_equal(entry, list(map(str, listed))) for entry in entries]


def _equal(entry: object, names: Sequence[str]) -> EqualPresets:
    """Read a list of presets, or a mapping with `presets` and `close`."""
    chosen = entry
    close = None
    if isinstance(entry, dict) and entry.keys() == {"presets", "close"}:
        chosen = entry["presets"]
        # YAML 1.1 reads 1e-6 as text.
        with suppress(TypeError, ValueError):
            close = float(entry["close"])
        _check(close is not None and close >= 0, EQUAL)
    if not isinstance(chosen, list) or len(chosen) < 2:
        raise ConfigError(f"{FILE}: {EQUAL}")
    for name in chosen:
        _check(name in names, f"equal: no preset {name}{hint(str(name), names)}")
    return EqualPresets(tuple(chosen), close)


def _check(is_right: bool, problem: str) -> None:
    if not is_right:
        raise ConfigError(f"{FILE}: {problem}")
