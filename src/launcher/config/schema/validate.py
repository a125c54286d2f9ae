"""Finds every error of a composed configuration, before anything heavy is imported.

The keys that no constructor takes (`seed`, `run`, `trainer`, ...) are in
`launcher.config.settings`. For a node with `_target_` the target's own signature is the schema,
read from its source. Rules across several keys are in `launcher.config.schema.checks`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, Literal

from launcher.config.compose.overrides import typed_keys
from launcher.config.compose.resolve import UNRESOLVED, references
from launcher.config.identity.difference import is_within
from launcher.config.messages import (
    ConfigIssue,
    MissingValue,
    WrongType,
    hint,
    key_for,
    raise_issues,
    show,
    to_override_text,
)
from launcher.config.options import COLLECTIONS, composition_folders, file_with, options
from launcher.config.schema.checks import RULES, RULES_OF_TRAINING, address_issues
from launcher.config.schema.declared import declared
from launcher.config.schema.run_length import (
    SCHEDULE_LENGTH,
    length_issues,
    number_of_epochs,
    with_epochs,
)
from launcher.config.schema.signature import (
    REQUIRED,
    UNKNOWN,
    Parameter,
    Signature,
    class_source,
    signature_of,
)
from launcher.config.schema.source import NotFound, find_module
from launcher.config.schema.value_types import describe, fits, is_finite
from launcher.config.secrets import secret_issues, without_environment
from launcher.config.settings import SECTIONS, CompileSettings, Top, section
from launcher.config.tree import Node, Tree, as_list, get, items, join, pick, walk
from launcher.errors import ConfigError
from launcher.types import NonNegativeFloat

OPEN_SECTIONS = ("paths",)
"""Sections to which users may add keys."""
GROUPS = ("job", "data", "model", "optimizer", "scheduler", "strategy", "precision", "dispatch")
INSTEAD = "set paths.outputs instead"
HYDRA_KEYS: dict[str, tuple[tuple[object, ...], str]] = {
    "run.dir": (("${run.dir}",), INSTEAD),
    "sweep.dir": (("${launcher.path:${paths.outputs}}",), INSTEAD),
    "sweep.subdir": (("${run.name}/${run.id}",), INSTEAD),
    "output_subdir": ((None,), INSTEAD),
    "job.chdir": ((False, None), "paths are relative to the folder of the command"),
}
"""Keys of Hydra that cannot be changed, with the values that they may have."""
FACTORIES = ("optimizer", "scheduler")
"""Groups whose targets get their first argument from training, with or without `_partial_:
true`."""
REQUIRED_GROUPS = ("job", "data", "model", "strategy", "precision", "dispatch")
REQUIRED_TO_TRAIN = ("optimizer", "trainer")
SCHEDULER_METRIC = Parameter("metric", str, REQUIRED)
"""`scheduler.metric` is used by the run; the scheduler's own constructor does not get it."""
QUOTES = "; a text needs quotes:"
STEP = re.compile(r"(?:step-0*)?(\d+|best)")
"""A checkpoint of the run."""
SOURCE = re.compile(r"data\.sources\.[^.]+")
"""The path of a source of `data=mixture`."""
SOURCE_WEIGHT = Parameter("weight", NonNegativeFloat, 1.0)
"""A key that the mixture uses. It also uses `val_dataset` of a source, and sets each source's
`batch_size` to its own."""
INSTANTIATION: dict[str, Any] = {
    "_target_": str,
    "_partial_": bool,
    "_args_": list,
    "_recursive_": bool,
    "_convert_": Literal["none", "partial", "object", "all"],
}
"""Keys of any node with `_target_`, with their types."""


def check_tree(tree: Tree, written: Tree, stored: Node, unresolved: Sequence[ConfigIssue]) -> None:
    """Check a resolved configuration, and report every error.

    Args:
        tree: the configuration. `UNRESOLVED` is in place of values that do not resolve.
        written: the same with interpolations as written, and Hydra's node.
        stored: the same as it would be stored.
        unresolved: errors of the interpolations.
    """
    sources = references({key: written[key] for key in tree})
    needs_optimizer = _needs_optimizer(tree)
    issues = [*address_issues(tree.get("data")), *unresolved]
    issues += [*_sections(tree, needs_optimizer), *_groups(tree, written, needs_optimizer)]
    for path, node in [("", tree), *walk(tree, lists=True)]:
        if isinstance(node, dict) and "_target_" in node and path not in COLLECTIONS:
            issues += _node(path, node, set(sources.values()) if path == "data" else set())
    if get(tree, "trainer.max_epochs") is not None and get(tree, SCHEDULE_LENGTH) is None:
        # The number of steps follows from the data.
        issues = [issue for issue in issues if issue.key != SCHEDULE_LENGTH]
    issues += crosschecks(tree, {issue.key for issue in issues})
    if needs_optimizer:
        lengths = list(length_issues(tree.get("trainer"), sources))
        keys = {issue.key for issue in lengths}
        issues = [*(issue for issue in issues if issue.key not in keys), *lengths]
    secrets = list(secret_issues(written, tree, stored))
    # Another message would show the value.
    shown = {issue.key for issue in secrets}
    issues = [*secrets, *(issue for issue in issues if issue.key not in shown)]
    if issues:
        messages = map(str, _at_their_source(issues, written))
        raise ConfigError(*without_environment(messages, str(written)))


def _needs_optimizer(tree: Node) -> bool:
    return bool(declared(get(tree, "job._target_"), "needs_optimizer"))


def crosschecks(tree: Node, rejected: Collection[str] = ()) -> Iterator[ConfigIssue]:
    """The errors of a resolved configuration by the rules across keys.

    Args:
        tree: the configuration.
        rejected: keys with an error. A rule that reads one of them is not asked.
    """
    sound = _without(tree, rejected)
    rules = {**(RULES_OF_TRAINING if _needs_optimizer(sound) else {}), **RULES}
    for rule, keys in rules.items():
        if not set(keys) & set(rejected):
            yield from rule(*pick(sound, keys))


def _without(tree: Node, rejected: Collection[str], path: str = "") -> Tree:
    """Return a tree without the keys in error and the values that do not resolve."""
    sound: Tree = {}
    for key, value in tree.items():
        here = join(path, key)
        if value is not UNRESOLVED and here not in rejected:
            sound[key] = _without(value, rejected, here) if isinstance(value, dict) else value
    return sound


def check_dispatch(tree: dict[str, Any]) -> None:
    """Check a stored configuration whose dispatch has been changed."""
    raise_issues([*_node("dispatch", tree["dispatch"], set()), *crosschecks(tree)])


def check_hydra(hydra: Any) -> None:
    """Check Hydra's own node, interpolations as written, if a configuration has it."""
    if hydra:
        raise_issues(_hydra_keys(hydra))
        raise_issues(_check_hidden_options(hydra["runtime"]))


def _hydra_keys(hydra: Mapping[str, object]) -> Iterator[ConfigIssue]:
    for key, (allowed, way) in HYDRA_KEYS.items():
        value = get(hydra, key)
        if value not in allowed:
            yield ConfigIssue(f"hydra.{key}", show(value), f"cannot be changed; {way}.")
    searchpath = get(hydra, "searchpath")
    if not isinstance(searchpath, list | None):
        text = "should be a list; e.g. hydra.searchpath=[pkg://my_package.conf]."
        yield ConfigIssue("hydra.searchpath", show(searchpath), text)
    for source in get(hydra, "runtime.config_sources", ()):
        path = source["path"]
        if source["schema"] == "pkg" and find_module(path) is None:
            text = f"there is no package {path}."
            yield ConfigIssue("hydra.searchpath", f"pkg://{path}", text)
        elif source["schema"] == "file" and not Path(path).is_dir():
            yield ConfigIssue("hydra.searchpath", path, "there is no such folder.")


def _check_hidden_options(runtime: Node) -> Iterator[ConfigIssue]:
    """Report chosen options that several folders have: Hydra silently uses the first."""
    folders = composition_folders(runtime)
    choices = runtime["choices"] if len(folders) > 1 else {}
    for group, choice in choices.items():
        for option in as_list(choice):
            files = [(folder, folder / str(group) / f"{option}.yaml") for folder in folders]
            present = [(folder, file.read_bytes()) for folder, file in files if file.is_file()]
            for folder, content in present[1:]:
                if content != present[0][1]:
                    used = present[0][0]
                    text = (
                        f"also an option of {used}, which would be used instead of the"
                        f" option of {folder}; rename it."
                    )
                    yield ConfigIssue(str(group), str(option), text)


def without_own_keys(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved node without keys of the user's own, to which only other keys refer."""
    spec = signature_of(node.get("_target_"))
    if spec.takes_more:
        return dict(node)
    return {key: value for key, value in node.items() if key in (*spec.names, *INSTANTIATION)}


def _at_their_source(issues: list[ConfigIssue], written: dict[str, object]) -> list[ConfigIssue]:
    """Deduplicate errors.

    If a key refers to another key with an error, only that key is reported. If it refers to a valid
    key of the wrong type for it, the message names both.
    """
    sources = references(written)
    keys = {issue.key for issue in issues}
    # Other keys of the same group may follow from the missing one.
    unfinished = {issue.key.partition(".")[0] for issue in issues if type(issue) is MissingValue}
    remaining = []
    issues = [_from_file(_from_environment(issue, written), written) for issue in issues]
    for issue in dict.fromkeys(issues):
        source = sources.get(issue.key)
        if source is not None:
            follows = issue.value == "null" and source.partition(".")[0] in unfinished
            if follows or source in keys:
                continue
            if isinstance(issue, WrongType):
                issue = replace(issue, text=f"taken from {source}, {issue.text}")
        remaining.append(issue)
    return remaining


def _from_environment(issue: ConfigIssue, written: dict[str, object]) -> ConfigIssue:
    """Return the error of a value of the wrong type. A value of the environment is always text."""
    value = get(written, issue.key)
    if not (isinstance(issue, WrongType) and str(value).startswith("${oc.env:")):
        return issue
    text = issue.text.partition("; e.g. ")[0].rstrip(".")
    way = (
        f"{text}, and variables of the environment are text; write"
        f" '{issue.key}=\"${{oc.decode:{value}}}\"'."
    )
    return replace(issue, text=way)


def _from_file(issue: ConfigIssue, written: dict[str, object]) -> ConfigIssue:
    """Return the error of a text in a file that YAML reads as another type, which nobody typed."""
    text, quotes, _ = issue.text.partition(QUOTES)
    typed = typed_keys(get(written, "hydra.overrides.task", []))
    if not quotes or is_within(issue.key, typed):
        return issue
    file = file_with(issue.key, get(written, "hydra.runtime"))
    return replace(issue, text=f"{text}; a text needs quotes in {file or 'its YAML file'}.")


def _sections(tree: dict[str, object], needs_optimizer: bool) -> Iterator[ConfigIssue]:
    tops = {key: value for key, value in tree.items() if key in section(Top).names}
    yield from _keys("", tops, replace(section(Top), name="a run"), partial=False)
    for name, keys in SECTIONS.items():
        value = tree.get(name)
        if isinstance(value, dict):
            spec = section(keys, takes_more=name in OPEN_SECTIONS)
            yield from _keys(name, value, spec, partial=True)
            # No constructor has defaults for these keys.
            if needs_optimizer or name != "trainer":
                yield from _missing(name, value, spec.name, spec.parameters)
            if name == "trainer" and isinstance(options := value.get("compile"), dict):
                yield from _keys("trainer.compile", options, section(CompileSettings), False)
        elif name == "hpo" and name not in tree:
            # A stored configuration is of a single run, which has no search.
            continue
        elif value is not UNRESOLVED and not (value is None and name == "trainer"):
            names = ", ".join(section(keys).names)
            yield ConfigIssue(name, show(value), f"should have the keys {names}.")


def _groups(tree: Node, written: Node, needs_optimizer: bool) -> Iterator[ConfigIssue]:
    """Report unknown keys at the top, missing groups, and groups without a `_target_`."""
    folders = composition_folders(get(written, "hydra.runtime"))
    top_keys = [*section(Top).names, *SECTIONS, *GROUPS, *COLLECTIONS]
    for key, value in tree.items():
        if key not in top_keys and not _is_referred_to(written, key):
            yield _unknown_key(key, value, top_keys)
    for name in REQUIRED_GROUPS + (REQUIRED_TO_TRAIN if needs_optimizer else ()):
        if tree.get(name) is None:
            listed = " or ".join(options(folders, name)) or "..."
            yield ConfigIssue(name, None, f"the run needs one; choose {name}={listed}.")
    for name in GROUPS:
        yield from _has_target(name, tree.get(name))
    for name in COLLECTIONS:
        if isinstance(parts := tree.get(name), dict):
            yield from _collection(name, parts, options(folders, name))


def _unknown_key(key: str, value: object, top_keys: Collection[str]) -> ConfigIssue:
    near = hint(key, top_keys)
    text = f"a run has no such key, and nothing refers to it by ${{{key}}}{near}"
    first, dot, rest = str(key).partition(".")
    if dot:
        text = f"is one key with a dot; write {first}: {{{rest}: ...}}."
    inner = ", ".join(sorted(dict(items(value)).keys() & top_keys))
    if inner:
        begin = "its file should begin with `# @package _global_`."
        text = f"sets {inner} below itself; {begin}"
    return ConfigIssue(key, show(value), key_for(key) or text)


def _collection(name: str, parts: Node, options: Collection[str]) -> Iterator[ConfigIssue]:
    """Check the parts of a group with any number of them, by name."""
    if "_target_" in parts:
        text = "its file should name the part, e.g. `my_part: {_target_: ...}`."
        yield ConfigIssue(f"{name}._target_", show(parts["_target_"]), text)
        return
    for part, value in parts.items():
        if part in options and isinstance(value, dict) and "_target_" not in value:
            text = (
                f"has keys, but {name}=[...] does not choose {part}; add it, or remove the"
                f" keys: ~{name}.{part}."
            )
            yield ConfigIssue(f"{name}.{part}", None, text)
        else:
            yield from _has_target(f"{name}.{part}", value)


def _has_target(path: str, value: object) -> Iterator[ConfigIssue]:
    if value is None or _is_part(value):
        return
    if isinstance(value, dict):
        text = f"has no _target_; name its class or function, e.g. {path}._target_=my_package.Net."
        yield ConfigIssue(path, None, text)
    else:
        way = "" if "." in path else f"; `override /{path}: ...` in the defaults chooses an option"
        yield ConfigIssue(path, show(value), f"should be a part with a _target_, or null{way}.")


def _is_referred_to(written: Node, key: str) -> bool:
    """Return whether any value refers to a key of the user's own."""
    return bool(re.search(rf"\$\{{{re.escape(key)}\b", str(written)))


def _node(path: str, node: dict[str, Any], referred_to: set[str]) -> Iterator[ConfigIssue]:
    """Check a node with `_target_`. A key in `referred_to` may be the user's own."""
    target = node["_target_"]
    if not (isinstance(target, str) and all(target.split("."))):
        if target is not UNRESOLVED:
            text = "should name a class or function, by its dotted path."
            yield ConfigIssue(join(path, "_target_"), show(target), text)
        return
    for key, kind in INSTANTIATION.items():
        if key in node:
            yield from _check_type(join(path, key), node[key], Parameter(key, kind, UNKNOWN))
    try:
        spec = class_source(target).signature
    except NotFound as error:
        yield target_issue(path, target, error)
        return
    own = {key for key in node if key not in spec.names and join(path, key) in referred_to}
    keys = {key: value for key, value in node.items() if key not in {*INSTANTIATION, *own}}
    if path == "scheduler" and "metric" in keys:
        yield from _check_type("scheduler.metric", keys.pop("metric"), SCHEDULER_METRIC)
    if SOURCE.fullmatch(path):
        yield from _check_type(join(path, "weight"), keys.pop("weight", 1.0), SOURCE_WEIGHT)
        keys.pop("val_dataset", None)
        keys |= {"batch_size": UNRESOLVED} if "batch_size" in spec.names else {}
    is_factory = path in FACTORIES
    partial = is_factory or bool(node.get("_partial_") or node.get("_args_"))
    yield from _keys(path, keys, spec, partial)


def target_issue(path: str, target: str, error: NotFound) -> ConfigIssue:
    """The error of a `_target_` that does not exist."""
    if target.startswith("__main__."):
        text = "other processes cannot find a class of a notebook's cell; write it to a file"
        return ConfigIssue(join(path, "_target_"), show(target, 200), f"{text} (%%writefile).")
    if not error.where:
        near = hint(error.name, ["launcher", "torch"])
        if near == ".":
            near = "; is its folder on PYTHONPATH or the current folder?"
        text = f"no module {error.name}{near}"
    else:
        text = (
            f"no {error.name} in {error.where}{hint(error.name, error.names, error.where + '.{}')}"
        )
    return ConfigIssue(join(path, "_target_"), show(target, 200), text)


def _keys(
    path: str, node: dict[str, object], spec: Signature, partial: bool
) -> Iterator[ConfigIssue]:
    """Compare the keys of a node with a signature.

    With `partial`, missing arguments are not errors, since training adds them.
    """
    for key, value in node.items():
        if key in spec.names:
            yield from _check_type(join(path, key), value, spec[key])
        elif not spec.takes_more:
            near = hint(str(key), spec.names, join(path, "{}"))
            shown = None if value is UNRESOLVED else show(value)
            text = key_for(join(path, key)) or f"{spec.name} takes no {key}{near}"
            yield ConfigIssue(join(path, key), shown, text)
    if not partial:
        required = [parameter for parameter in spec.parameters if parameter.is_required]
        way = f", or +{path}._partial_=true for the function itself" if spec.is_function else ""
        yield from _missing(path, node, spec.name, required, way)


def _missing(
    path: str, node: dict[str, object], owner: str, parameters: Iterable[Parameter], way: str = ""
) -> Iterator[ConfigIssue]:
    for parameter in parameters:
        if parameter.name not in node:
            key = join(path, parameter.name)
            kind = parameter.annotation
            text = "value" if kind is Any else describe(kind)
            fix = f"add +{key}=<{text}>{way}."
            yield ConfigIssue(key, None, f"is missing, and {owner} needs it; {fix}")


def _check_type(key: str, value: object, parameter: Parameter) -> Iterator[ConfigIssue]:
    if _is_part(value):
        return
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if not _is_part(item)}
    elif isinstance(value, list) and any(map(_is_part, value)):
        return
    if type(value) is type(parameter.default) and value == parameter.default:
        return
    default = parameter.default
    is_plain = parameter.has_default and default is not None
    example = f"; e.g. {key}={show(default).strip(chr(39))}" if is_plain else ""
    if fits(value, parameter.annotation):
        # A default that is an expression, such as math.inf, may be infinite itself.
        if parameter.annotation is Any or default is UNKNOWN or is_finite(value):
            return
        what = "has a number that is not finite, or a whole one with more than 64 bits"
        if isinstance(value, int | float):
            what = "has more than 64 bits" if isinstance(value, int) else "is not a finite number"
        yield ConfigIssue(key, show(value), f"{what}{example or '; use another one'}.")
        return
    if key.startswith("scheduler.") and _counts_epochs(value, parameter.annotation):
        return
    instead = _suggest_value(key, value, parameter.annotation) or example
    yield WrongType(key, show(value), f"should be {describe(parameter.annotation)}{instead}.")


def _suggest_value(key: str, value: object, annotation: object) -> str:
    """Say what to type for a value that is probably meant; "" if that is unknown."""
    epochs = number_of_epochs(value) if key == "trainer.max_steps" else None
    if epochs is not None:
        return f"; set trainer.max_epochs={float(epochs):g} instead"
    if key == "run.resume" and (match := STEP.fullmatch(str(value))):
        back = f"python -m launcher.runs rollback RUN {match[1]}"
        return f"; `{back}` goes back to a checkpoint"
    if key == "device" and isinstance(value, str) and value.startswith("cuda:"):
        return f"; for one GPU set CUDA_VISIBLE_DEVICES={value[5:]}, and use device=cuda"
    if isinstance(value, float) and value.is_integer() and fits(int(value), annotation):
        return f"; use {key}={int(value)}"
    if isinstance(value, dict) and fits({str(key): value[key] for key in value}, annotation):
        key = next(name for name in value if not isinstance(name, str))
        return f"; a key that is text needs quotes: '{str(key).lower()}'"
    text = to_override_text(value)
    takes_numbers = "number" in describe(annotation)
    if isinstance(value, bool | int | float) and not takes_numbers and fits(text, annotation):
        return f"{QUOTES} '{key}=\"{text}\"'"
    return ""


def _counts_epochs(value: object, annotation: object) -> bool:
    """Return whether numbers of epochs may replace numbers of steps here."""
    whole, *fractions = (
        with_epochs(value, convert)
        for convert in (lambda n, _: ceil(n), lambda *_: 0.5, lambda *_: 1.5)
    )
    return fits(whole, annotation) and not any(fits(fraction, annotation) for fraction in fractions)


def _is_part(value: object) -> bool:
    """Return whether a value is a part to build, or unresolved."""
    return value is UNRESOLVED or (isinstance(value, dict) and "_target_" in value)
