"""JSON schemas of the options of each group, for editors."""

import re
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from launcher.config.fits import bounds
from launcher.config.options import groups
from launcher.config.reference import NOT_KEYS, group_options, top_keys
from launcher.config.sections import SECTIONS, Top, section
from launcher.config.signature import REQUIRED, UNKNOWN, Signature, signature
from launcher.config.source import NotFound

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
LIMITS: dict[type, tuple[str, str]] = {
    Gt: ("gt", "exclusiveMinimum"),
    Ge: ("ge", "minimum"),
    Lt: ("lt", "exclusiveMaximum"),
    Le: ("le", "maximum"),
    MinLen: ("min_length", "minLength"),
    MaxLen: ("max_length", "maxLength"),
}
TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", NoneType: "null"}
OF_MANY = ("hooks", "tracker")
"""Groups of which several options are chosen. Each option is a node under its own name."""
EXPERIMENT, CONFIG = "experiment", "config"
REFERENCE = re.compile(r"\$\{(\w+)\.(\w+)\}")


def schemas(folders: Sequence[Traversable]) -> dict[str, Schema]:
    """Return the schema of each group's files and of `config.yaml`; earlier folders come first."""
    return _Schemas(folders).all()


class _Schemas:
    def __init__(self, folders: Sequence[Traversable]):
        self.names = groups(folders)
        self.options = {group: group_options(folders, group) for group in self.names}
        texts = [
            file.read_text(encoding="utf-8")
            for folder in folders
            for group in self.names
            if (folder / group).is_dir()
            for file in (folder / group).iterdir()
            if file.name.endswith(".yaml")
        ]
        self.referred = {match for text in texts for match in REFERENCE.findall(text)}
        self.top = next(folder for folder in folders if (folder / "config.yaml").is_file())

    def all(self) -> dict[str, Schema]:
        documents = {group: self.group(group) for group in self.names if group != EXPERIMENT}
        root = self.root()
        return {
            name: {"$schema": DRAFT, **schema}
            for name, schema in (documents | {EXPERIMENT: root, CONFIG: root}).items()
        }

    def group(self, group: str) -> Schema:
        node = self.node(group)
        if group in OF_MANY:
            return {
                "type": ["object", "null"],
                "properties": {"defaults": self.defaults(group)},
                "additionalProperties": node,
            }
        return node

    def node(self, group: str) -> Schema:
        """The schema of a node with `_target_`, which chooses its keys; or of a section."""
        chosen: list[Schema] = []
        for target in dict.fromkeys(option.target for option in self.options[group]):
            if (spec := _signature(target)) is not None:
                condition = {
                    "properties": {"_target_": {"const": target}},
                    "required": ["_target_"],
                }
                chosen.append({"if": condition, "then": self.keys(group, spec, target)})
        if group in SECTIONS:
            return self.keys(group, section(SECTIONS[group]), None)
        targets = [option.target for option in self.options[group] if option.target]
        known = {"anyOf": [{"enum": [*dict.fromkeys(targets)]}, {"type": "string"}]}
        described = known | {"description": "the class or function that is called"}
        return {
            "type": ["object", "null"],
            "properties": {"_target_": described, "defaults": self.defaults(group)},
            **({"allOf": chosen} if chosen else {}),
        }

    def keys(self, group: str, spec: Signature, target: str | None) -> Schema:
        """The keys of a signature, with the comments of the YAML files that have them."""
        comments = {
            key.name.rpartition(".")[2]: key.comment
            for option in self.options.get(group, ())
            if option.target == target
            for key in option.keys
            if key.comment
        }
        properties: Schema = {}
        for parameter in spec.parameters:
            properties[parameter.name] = {
                "anyOf": [*_alternatives(parameter.annotation), *ELSEWHERE]
            }
            if parameter.name in comments:
                properties[parameter.name]["description"] = comments[parameter.name]
            if parameter.default not in (REQUIRED, UNKNOWN):
                properties[parameter.name]["default"] = parameter.default
        more: Schema = {name: {} for name in NOT_KEYS} | {"defaults": self.defaults(group)}
        more |= {name: {} for owner, name in self.referred if owner == group}
        more |= {"_args_": {}} | ({"metric": {}} if group == "scheduler" else {})
        return {
            "type": ["object", "null"],
            "properties": more | properties,
            **({} if spec.takes_more else {"additionalProperties": False}),
        }

    def root(self) -> Schema:
        """The schema of `config.yaml` and of presets, which change keys of any group."""
        top = section(Top)
        comments = {key.name: key.comment for key in top_keys(self.top)}
        found: Schema = {
            parameter.name: {
                "anyOf": [*_alternatives(parameter.annotation), *ELSEWHERE],
                "description": comments.get(parameter.name, ""),
            }
            for parameter in top.parameters
        }
        for name in SECTIONS:
            found[name] = self.keys(name, section(SECTIONS[name]), None)
        for group, listed in self.options.items():
            if group not in SECTIONS and group != EXPERIMENT:
                found[group] = {
                    "type": ["object", "null"],
                    "properties": {
                        key.name.partition(".")[2]: {"description": key.comment or key.kind}
                        for option in listed
                        for key in option.keys
                        if key.name.count(".") == 1
                    },
                }
        found |= {"defaults": self.defaults(EXPERIMENT), "hydra": {}}
        return {"type": ["object", "null"], "properties": found, "additionalProperties": False}

    def defaults(self, group: str) -> Schema:
        """A list of options: of the own group by name, or `group: option`."""
        names = [*self.names.get(group, ()), "_self_"]
        chosen: Schema = {}
        for name, known in self.names.items():
            one = {"enum": [*known, None]}
            several = {"anyOf": [one, {"type": "array", "items": one}]}
            chosen |= {
                f"{prefix}{name}": several for prefix in ("", "/", "override /", "override ")
            }
        return {
            "type": "array",
            "items": {
                "anyOf": [
                    {"type": "string", "enum": names},
                    {
                        "type": "object",
                        "properties": chosen,
                        "patternProperties": {"hydra/": {}},
                        "additionalProperties": False,
                    },
                ]
            },
        }


def _signature(target: str | None) -> Signature | None:
    try:
        return None if target is None or target == "???" else signature(target)
    except NotFound:
        return None


def _alternatives(annotation: object) -> list[Schema]:
    """The schemas of which a value must fit one."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return [schema for argument in arguments for schema in _alternatives(argument)]
    if origin is Annotated:
        limits = {
            LIMITS[type(mark)][1]: getattr(mark, LIMITS[type(mark)][0])
            for mark in bounds(annotation)
        }
        if get_origin(arguments[0]) is list:
            limits = {key.replace("Length", "Items"): limit for key, limit in limits.items()}
        return [
            schema | limits for schema in _alternatives(arguments[0]) if schema is not EPOCHS
        ] + ([EPOCHS] if arguments[0] is int else [])
    if origin is Literal:
        return [{"enum": list(arguments)}]
    kind = origin or annotation
    if kind in TYPES:
        return [{"type": TYPES[kind]}, *([EPOCHS] if kind is int else [])]
    if kind is list:
        items = {"anyOf": [*_alternatives(arguments[0]), *ELSEWHERE]} if arguments else {}
        return [{"type": "array", "items": items}]
    return [{"type": "object"}] if kind is dict else [{}]
