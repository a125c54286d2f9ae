"""JSON schemas of the options of each group, for editors."""

import re
from collections.abc import Iterable, Sequence
from importlib.resources.abc import Traversable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from launcher.config.options import COLLECTIONS, groups
from launcher.config.schema.reference import NOT_KEYS, Key, group_options, top_keys
from launcher.config.schema.signature import REQUIRED, UNKNOWN, Parameter, Signature, signature_of
from launcher.config.schema.value_types import LIMITS, bounds
from launcher.config.settings import SECTIONS, Top, section

Schema = dict[str, Any]
DRAFT = "http://json-schema.org/draft-07/schema#"
ELSEWHERE: list[Schema] = [
    {"type": "string", "pattern": r"\$\{.*\}"},
    {"const": "???"},
    {"type": "object", "required": ["_target_"]},
]
"""Values that any key may have: an interpolation, a missing value that the command line must give,
or a part."""
EPOCHS: Schema = {"type": "string", "pattern": r"^[0-9.]+ *epochs?$"}
BOUNDS: dict[type, str] = {
    Gt: "exclusiveMinimum",
    Ge: "minimum",
    Lt: "exclusiveMaximum",
    Le: "maximum",
    MinLen: "minLength",
    MaxLen: "maxLength",
}
TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", NoneType: "null"}
EXPERIMENT, CONFIG = "experiment", "config"
REFERENCE = re.compile(r"\$\{(\w+)\.(\w+)\}")


def schemas(folders: Sequence[Traversable]) -> dict[str, Schema]:
    """Return the schema of each group's files and of `config.yaml`; earlier folders come first."""
    builder = _Schemas(folders)
    root = builder.root()
    documents = {group: builder.group(group) for group in builder.names}
    documents |= {EXPERIMENT: root, CONFIG: root}
    return {name: {"$schema": DRAFT, **schema} for name, schema in documents.items()}


class _Schemas:
    def __init__(self, folders: Sequence[Traversable]):
        self.names = groups(folders)
        self.options = {group: group_options(folders, group) for group in self.names}
        present = [folder / group for folder in folders for group in self.names]
        files = [file for folder in present if folder.is_dir() for file in folder.iterdir()]
        texts = [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".yaml")]
        self.referred = {match for text in texts for match in REFERENCE.findall(text)}
        self.top = next(folder for folder in folders if (folder / "config.yaml").is_file())

    def group(self, group: str) -> Schema:
        node = self.node(group)
        if group not in COLLECTIONS:
            return node
        return _mapping({"defaults": self.defaults(group)}, node)

    def node(self, group: str) -> Schema:
        """The schema of a node with `_target_`, which chooses its keys; or of a section."""
        if group in SECTIONS:
            return self.keys(group, section(SECTIONS[group]), None)
        targets = dict.fromkeys(option.target for option in self.options[group] if option.target)
        chosen = [
            {
                "if": {"properties": {"_target_": {"const": target}}, "required": ["_target_"]},
                "then": self.keys(group, spec, target),
            }
            for target in targets
            if target != "???" and (spec := signature_of(target)) is not None
        ]
        target: Schema = {
            "anyOf": [{"enum": [*targets]}, {"type": "string"}],
            "description": "the class or function that is called",
        }
        node = _mapping({"_target_": target, "defaults": self.defaults(group)})
        return node | ({"allOf": chosen} if chosen else {})

    def keys(self, group: str, spec: Signature, target: str | None) -> Schema:
        """The keys of a signature, with the comments of the YAML files that have them."""
        options = [option for option in self.options.get(group, ()) if option.target == target]
        comments = _comments(key for option in options for key in option.keys)
        free = [*NOT_KEYS, "_args_", *(name for owner, name in self.referred if owner == group)]
        free += ["metric"] if group == "scheduler" else []
        properties: Schema = {key: {} for key in free} | {"defaults": self.defaults(group)}
        properties |= {each.name: _value(each, comments) for each in spec.parameters}
        return _mapping(properties, spec.takes_more)

    def root(self) -> Schema:
        """The schema of `config.yaml` and of presets, which change keys of any group."""
        comments = _comments(top_keys(self.top))
        properties = {each.name: _value(each, comments) for each in section(Top).parameters}
        for name in SECTIONS:
            properties[name] = self.keys(name, section(SECTIONS[name]), None)
        for group, listed in self.options.items():
            if group not in SECTIONS and group != EXPERIMENT:
                keys = [key for option in listed for key in option.keys if key.name.count(".") == 1]
                texts = {key.name.partition(".")[2]: key.comment or key.type for key in keys}
                properties[group] = _mapping(
                    {name: {"description": text} for name, text in texts.items()}
                )
        return _mapping(properties | {"defaults": self.defaults(EXPERIMENT), "hydra": {}}, False)

    def defaults(self, group: str) -> Schema:
        """A list of options: of the own group by name, or `group: option`."""
        names = [*self.names.get(group, ()), "_self_"]
        if group == EXPERIMENT:
            files = (file.name for file in self.top.iterdir())
            names += [name.removesuffix(".yaml") for name in files if name.endswith(".yaml")]
        chosen: Schema = {}
        for name, options in self.names.items():
            one = {"enum": [*options, None]}
            several = {"anyOf": [one, {"type": "array", "items": one}]}
            prefixes = ("", "/", "override /", "override ")
            chosen |= {f"{prefix}{name}": several for prefix in prefixes}
        entry = {"type": "object", "properties": chosen, "patternProperties": {"hydra/": {}}}
        one_of_names = {"type": "string", "enum": names}
        items = {"anyOf": [one_of_names, entry | {"additionalProperties": False}]}
        return {"type": "array", "items": items}


def _mapping(properties: Schema, others: Schema | bool = True) -> Schema:
    """The schema of a mapping, and of its keys without a schema of their own."""
    return {
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": others,
    }


def _comments(keys: Iterable[Key]) -> dict[str, str]:
    return {key.name.rpartition(".")[2]: key.comment for key in keys if key.comment}


def _value(parameter: Parameter, comments: dict[str, str]) -> Schema:
    schema: Schema = {"anyOf": [*_alternatives(parameter.annotation), *ELSEWHERE]}
    if parameter.name in comments:
        schema["description"] = comments[parameter.name]
    if parameter.default not in (REQUIRED, UNKNOWN):
        schema["default"] = parameter.default
    return schema


def _alternatives(annotation: object) -> list[Schema]:
    """Alternative schemas of a value."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return [schema for argument in arguments for schema in _alternatives(argument)]
    if origin is Annotated:
        is_list = get_origin(arguments[0]) is list
        limits = {
            BOUNDS[type(mark)].replace("Length", "Items" if is_list else "Length"): getattr(
                mark, LIMITS[type(mark)][0]
            )
            for mark in bounds(annotation)
        }
        return [
            schema if schema is EPOCHS else schema | limits
            for schema in _alternatives(arguments[0])
        ]
    if origin is Literal:
        return [{"enum": list(arguments)}]
    cls = origin or annotation
    if cls in TYPES:
        return [{"type": TYPES[cls]}, *([EPOCHS] if cls is int else [])]
    if cls is list:
        items = {"anyOf": [*_alternatives(arguments[0]), *ELSEWHERE]} if arguments else {}
        return [{"type": "array", "items": items}]
    return [{"type": "object"}] if cls is dict else [{}]
