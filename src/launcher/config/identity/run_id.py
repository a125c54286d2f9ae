"""Name and id of a run.

Importing this registers the resolvers of conf/config.yaml. They see the whole configuration, so
they resolve to the same value while Hydra composes, inside the run, and in a sweep's child process.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any

from hydra.core.utils import setup_globals
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config.identity.difference import is_equal
from launcher.config.identity.equivalence import later_defaults
from launcher.config.identity.locations import PLACEHOLDER, PREFIXES, Locations
from launcher.config.identity.record_entry import for_json
from launcher.config.omegaconf_nodes import resolve_at, to_plain
from launcher.config.schema.hook_dependencies import COUNTING, uncounted_keys
from launcher.config.schema.lane_rules import without_effect
from launcher.config.schema.run_length import default_steps
from launcher.config.settings import AUTO
from launcher.config.tree import (
    Node,
    Tree,
    as_list,
    get,
    is_interpolation,
    join,
    map_leaves,
    pick,
    value_at,
    walk,
    with_text_keys,
)
from launcher.process.files import expand

HASHED_RUN_KEYS = ("run.tag", "run.init_from", "run.fork_from", "run.fork_without")
"""Keys of `run` that are hashed if they are set, since they name another run or another initial
state."""

NEVER_HASHED = {"run", "hydra"}

HASHED_FILES = ("strategy.config_file",)
"""Keys of files whose content is hashed, not their path."""

HASHED_AS_NULL = {"trainer.micro_batch_size": AUTO}
"""Values that leave a number to the machine: they name the run that `null` names."""

DIGITS, DERIVED = 12, "${launcher.id:}"
"""Number of digits of an id, and the pattern of an id that is a hash."""

ESCAPED = "$\\u007b"
"""`${` in JSON, so that OmegaConf takes no text of an identity for an interpolation."""

_computing = False


def digest(hashed: Node) -> str:
    """The id of a run with an identity."""
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@contextmanager
def without_id() -> Iterator[None]:
    """Let values that refer to a derived `run.id` see a constant, since they decide it."""
    global _computing
    _computing = True
    try:
        yield
    finally:
        _computing = False


@without_id()
def identity_to_hash(config: DictConfig, written: Tree, plain: Node | None = None) -> Tree:
    """Return the tree that is hashed.

    It is the resolved configuration without the keys of `run.identity_exclude`, the hooks that
    change no number (see `uncounted_keys`), and later keys that have their defaults (see
    `later_defaults`). The keys of `HASHED_RUN_KEYS` that are set are in it. Whole floats become
    ints (`lr=1.0` is `lr=1`), and the values of `HASHED_AS_NULL` become null.

    Args:
        config: composed, and not resolved.
        written: the same as plain containers, interpolations as written.
        plain: the same resolved `without_id`, if that is known.
    """
    excluded = _keys_to_exclude(config, written)
    locations = cache(partial(Locations.of, config))

    def value_to_hash(value: Any, keys: tuple[object, ...]) -> Any:
        if is_interpolation(value):
            is_of_a_place = any(prefix in value for prefix in PREFIXES)
            try:
                resolved = resolve_at(config, keys) if plain is None else value_at(plain, keys)
            except OmegaConfBaseException:
                # Hydra asks for the id before it has set what `${hydra:...}` reads.
                if is_of_a_place:
                    return value
                raise
            if isinstance(resolved, dict | list):
                node = resolve_at(config, keys)
                if is_of_a_place and locations().contain(node):
                    return value
                # In it, locations are hashed as written too.
                return map_leaves(_without(node, excluded, keys), value_to_hash, keys)
            value = locations().hide(value, resolved)
        return _hashed_leaf(value, ".".join(map(str, keys)))

    hashed: Tree = with_text_keys(map_leaves(_without(written, excluded), value_to_hash))
    for key in HASHED_RUN_KEYS:
        if (setting := OmegaConf.select(config, key)) is not None:
            text = get(written, key)
            is_reference = is_interpolation(text)
            hashed[key] = str(locations().hide(text, setting) if is_reference else setting)
    return hashed


def _hashed_leaf(value: object, key: str) -> object:
    """Return what is hashed of a resolved value."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and key in HASHED_FILES:
        return _content(expand(value))
    return None if value == HASHED_AS_NULL.get(key) else value


def _keys_to_exclude(config: DictConfig, written: Tree) -> set[str]:
    """Return the keys that are not hashed."""
    value = partial(OmegaConf.select, config)
    excluded = NEVER_HASHED | without_effect(value("trainer.lanes"))
    hooks, scheduler, _ = pick(written, COUNTING)
    excluded |= uncounted_keys(hooks, scheduler, value("run.identity_exclude"), value)
    for path, node in walk(_without(written, excluded)):
        if isinstance(node, Mapping):
            defaults = later_defaults(path, node.get("_target_"))
            keys = {join(path, key): defaults[key] for key in defaults.keys() & node.keys()}
            excluded |= {key for key, default in keys.items() if is_equal(value(key), default)}
    return excluded


def _without(tree: object, excluded: set[str], keys: tuple[object, ...] = ()) -> Any:
    if not isinstance(tree, dict):
        return tree
    paths = {key: (*keys, key) for key in tree if ".".join(map(str, (*keys, key))) not in excluded}
    return {key: _without(tree[key], excluded, path) for key, path in paths.items()}


def _content(file: Path) -> object:
    """Read a file's content, parsed if it is JSON. If it cannot be read, return its path."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError):
        return str(file)
    try:
        return json.loads(text)
    except ValueError:
        return text


def choices(config: DictConfig) -> Tree:
    """Return the chosen option of each group, empty for a configuration without Hydra."""
    chosen = OmegaConf.select(config, "hydra.runtime.choices")
    return to_plain(chosen) if chosen is not None else {}


def run_name(config: DictConfig) -> str:
    """Return the experiment's name, else `<model>-<data>` by options or class names."""
    chosen = choices(config)
    if chosen.get("experiment"):
        return _file_name(chosen["experiment"])
    return "-".join(
        _file_name(chosen.get(group) or _class_name(config, group)) for group in ("model", "data")
    )


def identity_text(hashed_id: str, hashed: Tree) -> str:
    """Return the text of `run.identity`: the id and the tree that is hashed."""
    text = json.dumps({"id": hashed_id, "identity": for_json(hashed)}, separators=(",", ":"))
    return text.replace("${", ESCAPED)


def _class_name(config: DictConfig, group: str) -> str:
    target = OmegaConf.select(config, f"{group}._target_")
    return str(target).rpartition(".")[2].lower() if target else "none"


def _file_name(choice: object) -> str:
    """Join `nested/option` or several options into the name of one folder."""
    return "+".join(str(part).replace("/", "-") for part in as_list(choice))


def _resolve_id(config: DictConfig) -> str:
    if _computing:
        return PLACEHOLDER
    return digest(identity_to_hash(config, to_plain(config)))


def _resolve_steps(config: DictConfig) -> int | None:
    return default_steps(OmegaConf.select(config, "trainer.max_epochs"))


# ${hydra:...}, in processes that do not compose too.
setup_globals()
register: Any = OmegaConf.register_resolver
# Before OmegaConf 2.4 another function had this name.
if "replace" not in signature(register).parameters:
    register = OmegaConf.register_new_resolver
register("launcher.id", lambda *, _root_: _resolve_id(_root_), replace=True)
register("launcher.name", lambda *, _root_: run_name(_root_), replace=True)
register("launcher.path", lambda path: str(expand(str(path))), replace=True)
register("launcher.absolute", lambda path: os.path.abspath(path), replace=True)
register("launcher.count", len, replace=True)
register("launcher.steps", lambda *, _root_: _resolve_steps(_root_), replace=True)
