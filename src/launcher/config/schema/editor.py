"""JSON schemas of the options of each group, for editors."""

import re
from collections.abc import Iterable, Sequence
from importlib.resources.abc import Traversable

from launcher.config.options import COLLECTIONS
from launcher.config.schema.reference import NOT_KEYS, Key, all_groups, top_keys
from launcher.config.schema.signature import Parameter, Signature, signature_of
from launcher.config.schema.value_types import ELSEWHERE, Schema, value_type
from launcher.config.settings import SECTIONS, Top, section

DRAFT = "http://json-schema.org/draft-07/schema#"
EXPERIMENT = "experiment"
CONFIG = "config"
REFERENCE = re.compile(r"\$\{(\w+)\.(\w+)\}")


def schemas(folders: Sequence[Traversable]) -> dict[str, Schema]:
    """Return the schema of each group's files and of `config.yaml`; earlier folders come first."""
    builder = _Schemas(folders)
    root = builder.root()
    documents = {group: builder.group(group) for group in builder.options}
    documents |= {EXPERIMENT: root, CONFIG: root}
    return {name: {"$schema": DRAFT, **schema} for name, schema in documents.items()}


class _Schemas:
    def __init__(self, folders: Sequence[Traversable]):
        self.options = all_groups(folders)
        present = [folder / group for folder in folders for group in self.options]
        files = [file for folder in present if folder.is_dir() for file in folder.iterdir()]
        texts = [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".yaml")]
        self.referred = {match for text in texts for match in REFERENCE.findall(text)}
        self.top = next(folder for folder in folders if (folder / "config.yaml").is_file())

    def group(self, group: str) -> Schema:
        """The schema of a group's files."""
        if group in SECTIONS:
            return self.keys(group, section(SECTIONS[group]), None)
        targets = dict.fromkeys(option.target for option in self.options[group] if option.target)
        specs = {target: signature_of(target) for target in targets}
        target: Schema = {
            "anyOf": [{"enum": [*targets]}, {"type": "string"}],
            "description": "the class or function that is called",
        }
        node = _mapping({"_target_": target, "defaults": self.defaults(group)})
        node["allOf"] = [
            {
                "if": {"properties": {"_target_": {"const": target}}, "required": ["_target_"]},
                "then": self.keys(group, spec, target),
            }
            for target, spec in specs.items()
        ]
        if group in COLLECTIONS:
            return _mapping({"defaults": self.defaults(group)}, node)
        return node

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
        properties: Schema = {"defaults": self.defaults(EXPERIMENT), "hydra": {}}
        properties |= {each.name: _value(each, comments) for each in section(Top).parameters}
        for name, keys in SECTIONS.items():
            properties[name] = self.keys(name, section(keys), None)
        for group, options in self.options.items():
            if group not in SECTIONS and group != EXPERIMENT:
                listed = [key for option in options for key in option.keys]
                properties[group] = _mapping(
                    {
                        key.name.partition(".")[2]: {"description": key.comment or key.type}
                        for key in listed
                        if key.name.count(".") == 1
                    }
                )
        return _mapping(properties, False)

    def defaults(self, group: str) -> Schema:
        """A list of options: of the own group by name, or `group: option`."""
        names = [*(option.name for option in self.options.get(group, ())), "_self_"]
        if group == EXPERIMENT:
            # The place of a project's defaults has no file of its own.
            names += [
                "_project_",
                *(file.name.removesuffix(".yaml") for file in self.top.iterdir()),
            ]
        chosen: Schema = {"hydra/": {}}
        for other, options in self.options.items():
            one = {"enum": [*(option.name for option in options), None]}
            chosen[f"^(override )?/?{other}$"] = {"anyOf": [one, {"type": "array", "items": one}]}
        entry = {"type": "object", "patternProperties": chosen, "additionalProperties": False}
        return {"type": "array", "items": {"anyOf": [{"enum": names}, entry]}}


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
    schema: Schema = {"anyOf": [*value_type(parameter.annotation).schemas(), *ELSEWHERE]}
    if parameter.name in comments:
        schema["description"] = comments[parameter.name]
    if parameter.has_default:
        schema["default"] = parameter.default
    return schema
