"""Every error of a composed configuration, each one a sentence, before anything heavy is imported.

The keys that no constructor takes (`seed`, `run`, `trainer`, ...) are the dataclasses below. For a node
with `_target_` the target's own signature is the schema, read from its source. What several keys must agree
on is in `launcher.config.checks`.
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from annotated_types import Ge, Lt
from omegaconf import DictConfig, OmegaConf

from launcher.config.checks import NO_TRAINING, crosschecks
from launcher.config.messages import describe, fits, hint, show
from launcher.config.options import composed_from, options
from launcher.config.resolve import UNRESOLVED, references, resolve
from launcher.config.signature import REQUIRED, UNKNOWN, Parameter, Signature, signature
from launcher.config.source import NotThere
from launcher.errors import ConfigError
from launcher.types import NonNegativeFloat, NonNegativeInt, PositiveInt


@dataclass
class Top:
    seed: Annotated[int, Ge(0), Lt(2**32)]
    device: Literal["auto", "cpu", "cuda", "mps"]


@dataclass
class Run:
    name: str
    id: str
    dir: str
    tag: str | int | float | None = None
    resume: str = "auto"
    init_from: str | None = None
    init_strict: bool = True
    not_identity: list[str] = field(default_factory=list)


@dataclass
class Paths:
    outputs: str


@dataclass
class TrainerKeys:
    max_steps: PositiveInt
    micro_batch_size: PositiveInt | None = None
    max_grad_norm: NonNegativeFloat | None = 1.0
    max_non_finite_grad_retries: NonNegativeInt | None = None
    max_skipped_steps: PositiveInt = 50
    max_none_losses: PositiveInt = 100
    no_sync_accumulate: bool = True
    activation_checkpointing: Literal["none", "full"] | PositiveInt = "none"
    compile: bool | dict[str, Any] = False
    deterministic: bool = False


@dataclass
class CompileKeys:
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    fullgraph: bool = False
    dynamic: bool | None = None
    backend: str = "inductor"


SECTIONS: dict[str, type] = {"run": Run, "paths": Paths, "trainer": TrainerKeys}
OPEN_SECTIONS = ("paths",)
"""Sections in which a user may keep keys of their own."""
GROUPS = ("job", "data", "model", "optimizer", "scheduler", "strategy", "precision", "dispatch")
COLLECTIONS = ("hooks", "tracker")
"""Groups that hold any number of parts by name."""
FACTORIES = ("optimizer", "scheduler")
"""Groups whose targets get their first argument when training builds them, `_partial_: true` or not."""
NEEDED = ("job", "data", "model", "strategy", "precision", "dispatch")
NEEDED_TO_TRAIN = ("optimizer", "trainer")
INSTANTIATION = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")


def validate(config: DictConfig) -> dict[str, Any]:
    """Check a composed configuration, with or without its `hydra` node.

    Returns:
        The resolved configuration as plain containers, without Hydra's node.
    Raises:
        ConfigError: with a sentence for every fault found.
    """
    tree, faults = resolve(config)
    faults += _sections(tree, _trains(tree))
    faults += _groups(tree, config)
    for path, node in _nodes(tree, ""):
        faults += _node(path, node)
    faults += crosschecks({key: value for key, value in tree.items() if value is not UNRESOLVED})
    if faults:
        raise ConfigError(*_at_their_source(faults, references(OmegaConf.to_container(config, resolve=False))))
    return tree


def _at_their_source(faults: list[str], sources: dict[str, str]) -> list[str]:
    """Each sentence once. A key that repeats the bad value of another by interpolation gets none; one that cannot do
    with a value that is good enough for the other says where it is from."""
    keys = {fault.partition("=")[0] for fault in faults}
    kept = []
    for fault in dict.fromkeys(faults):
        source = sources.get(fault.partition("=")[0])
        if source is None:
            kept.append(fault)
        elif source not in keys:
            kept.append(fault.replace(": should be", f": taken from {source}, should be", 1))
    return kept


def _trains(tree: dict[str, Any]) -> bool:
    job = tree.get("job")
    return not (isinstance(job, dict) and job.get("_target_") in NO_TRAINING)


def _sections(tree: dict[str, Any], trains: bool) -> Iterator[str]:
    tops = {key: value for key, value in tree.items() if key in ("seed", "device")}
    yield from _keys("", tops, _section(Top), partial=False)
    for name, keys in SECTIONS.items():
        value = tree.get(name)
        if isinstance(value, dict):
            spec = _section(keys, takes_more=name in OPEN_SECTIONS)
            yield from _keys(name, value, spec, partial=name == "trainer" and not trains)
            if name == "trainer" and isinstance(value.get("compile"), dict):
                yield from _keys("trainer.compile", value["compile"], _section(CompileKeys), partial=False)
        elif value is not UNRESOLVED and not (value is None and name == "trainer"):
            yield f"{name}={show(value)}: should hold the keys {', '.join(_section(keys).names)}."


@cache
def _section(keys: type, takes_more: bool = False) -> Signature:
    hints = get_type_hints(keys, include_extras=True)
    parameters = []
    for one in fields(keys):
        absent = UNKNOWN if callable(one.default_factory) else REQUIRED
        default = absent if one.default is MISSING else one.default
        parameters.append(Parameter(one.name, hints[one.name], default))
    return Signature(keys.__name__.removesuffix("Keys").lower(), tuple(parameters), takes_more)


def _groups(tree: dict[str, Any], config: DictConfig) -> Iterator[str]:
    """Unknown keys at the top, parts that are missing, and groups that say no `_target_`."""
    known = [*_section(Top).names, *SECTIONS, *GROUPS, *COLLECTIONS]
    for key, value in tree.items():
        if key not in known and not _is_referred_to(config, key):
            near = hint(key, known)
            yield f"{key}={show(value)}: is no part of a run, and nothing refers to it by ${{{key}}}{near}"
    for name in NEEDED + (NEEDED_TO_TRAIN if _trains(tree) else ()):
        if tree.get(name) is None:
            listed = " or ".join(options(composed_from(config), name)) or "..."
            yield f"{name}: the run needs one; choose {name}={listed}."
    for name in GROUPS:
        yield from _has_target(name, tree.get(name))
    for name in COLLECTIONS:
        parts = tree.get(name)
        for part, value in parts.items() if isinstance(parts, dict) else ():
            yield from _has_target(f"{name}.{part}", value)


def _has_target(path: str, value: Any) -> Iterator[str]:
    if value is None or value is UNRESOLVED or (isinstance(value, dict) and "_target_" in value):
        return
    if isinstance(value, dict):
        yield f"{path}: has no _target_; name its class or function, e.g. {path}._target_=my_package.MyClass."
    else:
        yield f"{path}={show(value)}: should be a part with a _target_, or null."


def _is_referred_to(config: DictConfig, key: str) -> bool:
    """Whether any value interpolates a key: then it is a variable of the user's."""
    return bool(re.search(rf"\$\{{{re.escape(key)}\b", str(OmegaConf.to_container(config, resolve=False))))


def _nodes(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each node with a `_target_`, at any depth, with its path."""
    if isinstance(value, dict):
        if isinstance(value.get("_target_"), str):
            yield path, value
        for key, item in value.items():
            yield from _nodes(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nodes(item, f"{path}.{index}")


def _node(path: str, node: dict[str, Any]) -> Iterator[str]:
    target = node["_target_"]
    try:
        spec = signature(target)
    except NotThere as error:
        yield not_there(f"{path}._target_={show(target, 200)}", error)
        return
    if spec is None:
        return
    given = {key: value for key, value in node.items() if key not in INSTANTIATION}
    positional = len(node.get("_args_") or ())
    partial = path in FACTORIES or bool(node.get("_partial_")) or positional > 0
    yield from _keys(path, given, spec, partial)


def not_there(key: str, error: NotThere) -> str:
    """The sentence for a `_target_` that leads nowhere; `key` is `model._target_='my_package.MyModel'`."""
    if not error.where:
        near = hint(error.name, ["launcher", "torch"])
        way = near if near != "." else "; is its folder on PYTHONPATH or the current folder?"
        return f"{key}: no module {error.name}{way}"
    return f"{key}: no {error.name} in {error.where}{hint(error.name, error.names, error.where + '.{}')}"


def _keys(path: str, given: dict[str, Any], spec: Signature, partial: bool) -> Iterator[str]:
    """Compare the keys of a node with a signature; a partial one gets its missing arguments later."""
    prefix = f"{path}." if path else ""
    for key, value in given.items():
        if key in spec.names:
            yield from _typed(prefix + key, value, spec[key])
        elif not spec.takes_more:
            near = hint(key, spec.names, prefix + "{}")
            yield f"{prefix}{key}={show(value)}: {spec.name} takes no {key}{near}"
    for parameter in spec.parameters:
        if parameter.is_required and parameter.name not in given and not partial:
            key, kind = prefix + parameter.name, describe(parameter.annotation)
            yield f"{key}: is not given, and {spec.name} needs it; add +{key}=<{kind}>."


def _typed(key: str, value: Any, parameter: Parameter) -> Iterator[str]:
    if value is UNRESOLVED or (isinstance(value, dict) and "_target_" in value):
        return
    if _holds_parts(value) or (type(value) is type(parameter.default) and value == parameter.default):
        return
    if fits(value, parameter.annotation):
        return
    default = parameter.default
    plain = default is not REQUIRED and default is not UNKNOWN and default is not None
    example = f"; e.g. {key}={show(default).strip(chr(39))}" if plain else ""
    yield f"{key}={show(value)}: should be {describe(parameter.annotation)}{example}."


def _holds_parts(value: Any) -> bool:
    """A list or mapping with a value yet to come or a part to build in it: what it will hold cannot be
    told."""
    items = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return any(item is UNRESOLVED or (isinstance(item, dict) and "_target_" in item) for item in items)
