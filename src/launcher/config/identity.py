"""Who a run is: its name, its id (a hash of the configuration) and so its folder; and how two
configurations differ.

Importing this registers the resolvers that conf/config.yaml uses: `${launcher.name:}`, `${launcher.id:}`
and `${launcher.path:...}`. They see the whole configuration, so they give the same answer while Hydra
composes, inside the run, and in a sweep's child.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import Container, DictConfig, ListConfig, OmegaConf

from launcher.config.messages import show

PLACES = ("${run.", "${paths.", "${hydra", "${launcher.")
"""Values that interpolate these say where a run lies, not what it computes; the hash takes them as they are
written."""

COUNTED_OF_RUN = ("run.tag", "run.init_from")
"""What counts of `run` where it is set: a wish for another run, and other weights to start from."""

_computing = False


def run_id(config: DictConfig) -> str:
    """The first 8 hex digits of a hash of all that counts, see `identity`.

    Raises:
        omegaconf.errors.OmegaConfBaseException: an interpolation does not resolve.
    """
    with _no_recursion():
        counted = identity(config)
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def identity(config: DictConfig) -> dict[str, Any]:
    """The resolved configuration without what `run.not_identity` names, with `run.tag` and `run.init_from` where
    they are set; whole floats are ints (`lr=1.0` is `lr=1`)."""
    excluded = {str(path) for path in OmegaConf.select(config, "run.not_identity") or ()} | {"run", "hydra"}
    counted: dict[str, Any] = _counted(unresolved(config), (), config, excluded)
    for key in COUNTED_OF_RUN:
        value = OmegaConf.select(config, key)
        if value is not None:
            counted[key] = str(value)
    return counted


def _counted(written: Any, keys: tuple[Any, ...], config: DictConfig, excluded: set[str]) -> Any:
    if isinstance(written, dict):
        return {
            str(key): _counted(value, (*keys, key), config, excluded)
            for key, value in written.items()
            if ".".join(map(str, (*keys, key))) not in excluded
        }
    if isinstance(written, list):
        return [_counted(value, (*keys, index), config, excluded) for index, value in enumerate(written)]
    if is_interpolation(written):
        if any(place in written for place in PLACES):
            return written
        value = value_at(config, keys)
        if isinstance(value, Container):
            return _counted(OmegaConf.to_container(value, resolve=False), keys, config, excluded)
        written = value
    return int(written) if isinstance(written, float) and written.is_integer() else written


def unresolved(config: DictConfig) -> dict[str, Any]:
    """A configuration as plain containers, interpolations as written, without Hydra's node. OmegaConf takes a hundred
    times as long to resolve a value, so only the values that need it are resolved."""
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items() if key != "hydra"}


def is_interpolation(written: Any) -> bool:
    """Whether only OmegaConf can tell a value of `unresolved`."""
    return isinstance(written, str) and "${" in written


def value_at(config: DictConfig, keys: Iterable[Any]) -> Any:
    """The value under nested keys.

    Raises:
        omegaconf.errors.OmegaConfBaseException: it does not resolve.
    """
    value: Any = config
    for key in keys:
        value = value[key]
    return value


@contextmanager
def _no_recursion() -> Iterator[None]:
    """A counted value that leads back to `run.id` through another gets a constant instead of an endless
    loop."""
    global _computing
    _computing = True
    try:
        yield
    finally:
        _computing = False


def choices(config: DictConfig) -> dict[str, Any]:
    """Which option each group has (`{"model": "gpt", ...}`): from the configuration while it is composed,
    from Hydra afterwards. Empty for a configuration that Hydra did not compose."""
    found = OmegaConf.select(config, "hydra.runtime.choices")
    if found is None and HydraConfig.initialized():
        found = HydraConfig.get().runtime.choices
    return dict(found) if found is not None else {}


def run_name(config: DictConfig) -> str:
    """The experiment's name if there is one, else `<model>-<data>`: the options chosen, else the classes'
    names."""
    chosen = choices(config)
    if chosen.get("experiment"):
        return _file_name(chosen["experiment"])
    return "-".join(_file_name(chosen.get(group) or _class_name(config, group)) for group in ("model", "data"))


def _class_name(config: DictConfig, group: str) -> str:
    target = OmegaConf.select(config, f"{group}._target_")
    return str(target).rpartition(".")[2].lower() if target else "none"


def _file_name(choice: Any) -> str:
    """`nested/option` and several options become one folder name."""
    parts: Iterable[Any] = choice if isinstance(choice, list | ListConfig) else [choice]
    return "+".join(str(part).replace("/", "-") for part in parts)


def drift(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """A sentence for each key in which two resolved configurations (plain containers) differ, in the order
    of keys."""
    before, after = dict(_leaves(saved)), dict(_leaves(present))
    sentences = []
    for key in sorted(before.keys() | after.keys()):
        if key not in before:
            sentences.append(f"{key}={show(after[key])}: is new.")
        elif key not in after:
            sentences.append(f"{key}: was {show(before[key])}, is gone.")
        elif before[key] != after[key] or isinstance(before[key], bool) != isinstance(after[key], bool):
            sentences.append(f"{key}={show(after[key])}: was {show(before[key])}.")
    return sentences


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        here = join(path, key)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, here)
        else:
            yield here, value


def join(path: str, key: object) -> str:
    """The dotted path of a key in a node; the path of the root is ""."""
    return f"{path}.{key!s}" if path else str(key)


def _resolve_id(*, _root_: DictConfig) -> str:
    return "<id>" if _computing else run_id(_root_)


def _resolve_name(*, _root_: DictConfig) -> str:
    return run_name(_root_)


def _resolve_path(path: Any) -> str:
    return str(Path(str(path)).expanduser())


register: Any = OmegaConf.register_resolver
if "replace" not in signature(register).parameters:  # before OmegaConf 2.4 another function had this name
    register = OmegaConf.register_new_resolver
register("launcher.id", _resolve_id, replace=True)
register("launcher.name", _resolve_name, replace=True)
register("launcher.path", _resolve_path, replace=True)
