"""The presets of `guard.yaml`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from launcher.config.messages import hint
from launcher.errors import ConfigError
from launcher.proof.side import Preset

FILE = Path("guard.yaml")
KEYS = ("steps", "presets", "equal")
STEPS = 20
EXAMPLE = "presets: {first: [experiment=first]}"


@dataclass(frozen=True)
class EqualPresets:
    """Presets whose trainings must agree.

    Args:
        names: the presets.
        close: the largest relative difference of their losses. Default None: losses, weights and
            moments are bitwise identical.
    """

    names: tuple[str, ...]
    close: float | None = None


@dataclass(frozen=True)
class GuardFile:
    """The content of `guard.yaml`."""

    presets: tuple[Preset, ...]
    equal: tuple[EqualPresets, ...] = ()


def read_file(steps: int | None, config_dir: Path | None) -> GuardFile:
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
    if not isinstance(content, Mapping) or not isinstance(content.get("presets"), Mapping):
        raise ConfigError(f"{FILE}: presets: should be a mapping of presets; e.g. {EXAMPLE}")
    for key in content:
        if key not in KEYS:
            raise ConfigError(f"{FILE}: no key {key}{hint(str(key), KEYS)}")
    own = content.get("steps", STEPS)
    if type(own) is not int or own < 1:
        raise ConfigError(f"{FILE}: steps={own!r} should be a number of steps, e.g. {STEPS}.")
    presets = tuple(
        Preset(str(name), _overrides(name, words), steps or own, config_dir)
        for name, words in content["presets"].items()
    )
    names = [preset.name for preset in presets]
    classes = content.get("equal", [])
    if not isinstance(classes, list):
        raise _bad_equal()
    return GuardFile(presets, tuple(_equal(each, names) for each in classes))


def _overrides(name: str, words: object) -> tuple[str, ...]:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{FILE}: presets.{name}: should be a list of overrides; e.g. {EXAMPLE}")
    return tuple(words)


def _equal(entry: object, names: Sequence[str]) -> EqualPresets:
    """Read an entry of `equal`: a list of presets, or a mapping with `presets` and `close`."""
    close = None
    if isinstance(entry, Mapping):
        if entry.keys() != {"presets", "close"}:
            raise _bad_equal()
        # YAML 1.1 reads 1e-6 as text.
        with suppress(TypeError, ValueError):
            close = float(entry["close"])
        if close is None or not close >= 0:
            raise _bad_equal()
        entry = entry["presets"]
    if not isinstance(entry, list) or len(entry) < 2:
        raise _bad_equal()
    for name in entry:
        if name not in names:
            raise ConfigError(f"{FILE}: equal: no preset {name}{hint(str(name), names)}")
    return EqualPresets(tuple(entry), close)


def _bad_equal() -> ConfigError:
    return ConfigError(
        f"{FILE}: equal: should have lists of presets, such as [none, ddp], or"
        " {presets: [small, large], close: 1e-6}."
    )
