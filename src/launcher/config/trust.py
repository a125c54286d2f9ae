"""Decide whether a stored configuration may be run that this user has not signed.

A run folder, a checkpoint or an export may come from somebody else, and a `_target_` in it would be
imported and called. Without a signature it may name only what Launcher's own YAML files name, or
the YAML files of an installed package name of its own, and no value that carries code. Everything
else needs `--trust`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from launcher.config import plain_yaml
from launcher.config.compose.overrides import normalize, parse
from launcher.config.identity.difference import is_within
from launcher.config.messages import reason, show
from launcher.config.omegaconf_nodes import to_plain
from launcher.config.options import find_installed, main_folder, options, own_option
from launcher.config.schema.declared import declared
from launcher.config.schema.matters_from import CODE_PATH
from launcher.config.schema.signature import class_source
from launcher.config.schema.validate import GROUPS
from launcher.config.settings import CompileSettings
from launcher.config.tree import Tree, as_list, is_interpolation, nest, walk
from launcher.errors import ConfigError
from launcher.process.files import read_file
from launcher.process.users import other_owner
from launcher.rundir import signing

TARGET = "_target_"
SOURCES = "data.sources."
"""The place of the data sources of data=mixture."""
KERNEL = "attn_implementation"
"""A setting of transformers models. With a slash, it names code of the hub."""


def read_config(
    file: Path,
    trust: bool,
    built: Iterable[str] | None = None,
    trusting: str = "--trust",
    left_out: Iterable[str] = (),
) -> Tree:
    """Read the stored configuration of a checkpoint or an export, whose code may be run.

    Args:
        file: the configuration in YAML.
        trust: run whatever code it names.
        built: the nodes that will be built. Default None: all but `left_out`.
        trusting: what the user adds to run code that is not Launcher's.
        left_out: nodes that will not be built.
    """
    text = read_file(file, follow=True).decode()
    config = OmegaConf.create(text)
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{file}: is not a configuration.")
    nodes = to_plain(config)
    if not (trust or signing.is_own_text(text)):
        names = set(nodes) - set(left_out) if built is None else set(built)
        check_code({name: nodes[name] for name in nodes if name in names}, file, trusting)
    return nodes


def check_code(tree: object, file: Path, trusting: str = "--trust") -> None:
    """Check that a configuration that is not signed names no code but Launcher's own."""
    code = next(code_in(tree), None)
    if code is not None:
        reject(code, file, trusting)


def check_overrides(words: Iterable[str], config_dir: object, file: Path) -> None:
    """Check the overrides of an unsigned command, before they are composed."""
    if config_dir is not None:
        reject(f"--config-dir {config_dir}", file)
    for word in words:
        code = _code_in_override(word)
        if code is not None:
            reject(code, file)


def reject(code: str, file: Path, trusting: str = "--trust") -> None:
    owner = other_owner(file)
    author = "its author" if owner is None else f"its author {owner}"
    raise ConfigError(
        f"{code}: only the stored configuration {file} names it, it would run code, and your key"
        f" {signing.key_file()} has not signed it; add {trusting} if you trust {author}, or name"
        f" the key of your own run by {signing.VARIABLE}."
    )


def code_in(tree: object) -> Iterator[str]:
    """Yield each value that decides which code runs and is not Launcher's own, with its key."""
    installed = dict(_installed_nodes(tree))
    keys = code_keys() | {
        f"{path}.{key}"
        for path, node in installed.items()
        for key in declared(node["_target_"], "code_keys")
    }
    targets = own_targets() | installed_targets()
    for path, value in walk(tree, lists=True):
        name = path.rpartition(".")[2]
        if name == TARGET:
            is_code = not isinstance(value, str) or value not in targets
        elif (
            path in keys
            or name == "trust_remote_code"
            or (path.startswith(SOURCES) and f"data.{name}" in keys)
        ):
            is_code = bool(value)
        elif name == "weights_only":
            is_code = value is False
        elif isinstance(value, Mapping | list):
            continue
        else:
            is_code = (
                is_interpolation(value)
                or (CODE_PATH.fullmatch(str(value)) is not None and is_within(path, installed))
                or (KERNEL in path and "/" in str(value))
                or (path.startswith("dispatch.") and "\n" in str(value))
            )
        if is_code:
            yield f"{path}={value if name == TARGET else show(value)}"


@cache
def code_keys() -> frozenset[str]:
    """Return the keys whose values run code: a compiler, lines of a job's script."""
    sections = {f"trainer.compile.{key}" for key in CompileSettings.code_keys}
    return frozenset(sections).union(
        f"{group}.{key}"
        for group in GROUPS
        for name in options([main_folder()], group)
        for key in declared(own_option(group, name).get(TARGET), "code_keys")
    )


@cache
def own_targets() -> frozenset[str]:
    """Return the targets that Launcher's own YAML files name."""
    return frozenset(_targets_in(main_folder()))


@cache
def installed_targets() -> frozenset[str]:
    """Return the targets in YAML files of installed packages with options, if defined in them."""
    return frozenset(
        target
        for name, folder in find_installed().items()
        if folder is not None
        for target in _targets_in(folder)
        if _is_defined_in(name.partition(".")[0], target)
    )


def _is_defined_in(package: str, target: str) -> bool:
    """Return whether a class or function is a package's own, not one that it imports."""
    place = class_source(target).place
    return place is not None and is_within(place[0], [package])


def _installed_nodes(tree: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the nodes whose target is an installed package's, by path."""
    for path, node in walk(tree, lists=True):
        target = node.get(TARGET) if isinstance(node, Mapping) else None
        if isinstance(target, str) and target in installed_targets():
            yield path, cast(Mapping[str, Any], node)


def _targets_in(folder: Traversable) -> Iterator[str]:
    for tree in map(plain_yaml.load, _files(folder)):
        for path, value in walk(tree, lists=True):
            if path.rpartition(".")[2] == TARGET and isinstance(value, str) and value != "???":
                yield value


def _files(folder: Traversable) -> Iterator[bytes]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry)
        elif entry.name.endswith(".yaml"):
            yield entry.read_bytes()


def _code_in_override(word: str) -> str | None:
    """Return what an override chooses outside the groups, or names as code, or None."""
    try:
        override = parse(normalize(word))
        value: Any = override.value()
    except (HydraException, ValueError) as error:
        raise ConfigError(f"{word}: {reason(error)}.") from error
    key = override.key_or_group
    is_hydra = "hydra" in re.split(r"[./@:]", f"{key}@{override.package}")
    options = as_list(value)
    leads_out = "." not in key and any(
        ".." in Path(str(option)).parts or str(option).startswith("/") for option in options
    )
    if is_hydra or leads_out or override.is_sweep_override():
        return word
    return next(code_in(nest({key: value})), None)
