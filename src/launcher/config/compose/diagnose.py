"""Messages about overrides that cannot be read, or do not apply to a configuration."""

import re
from shlex import quote

from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, ListConfig

from launcher.config.compose.overrides import parameters, parse, select
from launcher.config.compose.resolve import references
from launcher.config.compose.session import first_line, loader
from launcher.config.messages import closest_name, hint, key_for, reason, show
from launcher.config.omegaconf_nodes import to_plain
from launcher.config.options import composition_folders, options_with
from launcher.config.schema.validate import GROUPS
from launcher.config.tree import as_list

SEVERAL = re.compile(r"^[^\s'\"\[{(]*\s+[~+]*[\w./@]+=")
"""A value that ends at a blank, before another override."""
CHOSEN_TWICE = re.compile(
    r"(In '.*': Could not override '.*/|Multiple values for |)(\w+)(@\2'|\. To| appears more than)"
)
"""Hydra's errors of a preset that chooses an option without `override /`."""
NULL_NAMES = ("none", "no", "off", "false")
OPTIONAL = ("scheduler", "hooks", "tracker")
"""Groups that a run may do without."""


def unreadable(text: str, error: Exception) -> str:
    if "=" not in text.lstrip("=") and not text.startswith("~"):
        return f"{text}: should be KEY=VALUE or GROUP=OPTION, without spaces around the =."
    key, _, value = text.partition("=")
    if value.endswith(","):
        return f"{text}: ends with a comma; remove it, or add another value."
    if SEVERAL.search(value):
        return f"{text}: is one argument with several overrides; type them without these quotes."
    # The names of the grammar's tokens do not help a user.
    detail = reason(error).partition(" expecting {")[0]
    return f"{text}: cannot be read ({detail}); {_readable_form(key, value)}"


def _readable_form(key: str, value: str) -> str:
    """Say how to write an override that cannot be read."""
    if key.endswith(" ") or value.startswith(" "):
        return f"write it without spaces around the =, {key.strip()}={value.strip()}."
    by_dots = re.sub(r"\[(\d+)\]", r".\1", key)
    if by_dots != key:
        return f"the items of a list are keys: {by_dots}={value}."
    form = '"' + value.replace('"', '\\"') + '"'
    if value.startswith(("[", "{", "(")) or not _is_readable(f"{key}={form}"):
        return "write [a,b] or {a: b}, and quotes around each text with special characters."
    quoted = quote(f"{key}={form}")
    return f"quote a text with special characters: {quoted}."


def _is_readable(text: str) -> bool:
    try:
        parse(text)
    except (HydraException, ValueError):
        return False
    return True


def explain_base_error(config_name: str, error: Exception) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file == config_name:
        names = loader().repository.get_group_options("", ObjectType.CONFIG)
        return (
            f"--config-name={config_name}: there is no such configuration{hint(config_name, names)}"
        )
    return first_line(error)


def unknown_option(override: Override) -> str | None:
    """Explain why a group does not have the chosen options; return None if it has them."""
    group = override.key_or_group
    value = override.value()
    if value is None:
        if override.is_delete():
            return None
        return f"to remove the group, write ~{group}."
    chosen = [str(option) for option in as_list(value)]
    # Hydra would merge them.
    if len(chosen) > 1 and group in (*GROUPS, "trainer", "hpo"):
        return f"a run has one {group}; choose one, or sweep: -m {group}={','.join(chosen)}."
    for option in chosen:
        folder, _, name = option.rpartition("/")
        nested = loader().repository.get_group_options(f"{group}/{folder}") if folder else []
        options = nested or loader().repository.get_group_options(group)
        prefix = f"{folder}/" if nested else ""
        if option.removeprefix(prefix) in options or "$" in option:
            continue
        if option.lower() in NULL_NAMES and group in OPTIONAL:
            return f"no option {option}; to remove the group, write ~{group}."
        place = f"{group}/{prefix}".rstrip("/")
        listed = f"{place} has {', '.join(options)}"
        text = _rewritten(override, group)
        near = closest_name(name.removesuffix(".yaml"), options)
        if near and option in text:
            meant = text.replace(option, prefix + near)
            return f"no option {option}; did you mean {meant}? ({listed})"
        return f"no option {option}; {listed}."
    return None


def bad_option(error: Exception) -> str:
    """Explain why an option of a group does not compose."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        folder, _, name = error.missing_cfg_file.rpartition("/")
        near = hint(name, error.options or (), folder + "/{}")
        return f"it needs {error.missing_cfg_file}, which does not exist{near}"
    message = first_line(error)
    # Hydra looks for the group inside the package of the preset, which is the preset's own name.
    pattern = (
        r"In '([^']+)': (?:Could not override '(\w+)@\w+\.\2'|Invalid Defaults List override"
        r" '/?(\w+): )"
    )
    if (match := re.match(pattern, message)) and loader().repository.get_group_options(
        group := match[2] or match[3]
    ):
        return f"{match[1]}.yaml should begin with `# @package _global_`, since it sets {group}."
    # Hydra's own message has no slash before the group.
    match = CHOSEN_TWICE.match(message)
    if match:
        return f"another {match[2]} is chosen by `override /{match[2]}: ...` in the defaults list."
    return message


def bad_key(override: Override, config: DictConfig, error: Exception) -> str:
    """Explain why an override of a value does not apply."""
    key = override.key_or_group
    message = key_for(key)
    if message:
        return message
    if override.is_add() and select(config, key) is not None:
        return "the key exists already; remove the +."
    parts = key.split(".")
    for index, part in enumerate(parts):
        path = ".".join(parts[:index])
        node = select(config, path) if path else config
        if isinstance(node, ListConfig):
            if part.isdecimal() and int(part) < len(node):
                continue
            return f"{path} is a list of {len(node)}, whose first item is {path}.0."
        if not isinstance(node, DictConfig):
            return f"{path} is {show(node)} and has no keys."
        # Unlike `part in node`, these have the keys whose value is missing.
        if part not in node.keys():  # noqa: SIM118
            if not path:
                return _unknown_key(override, config)
            return _unknown_part(override, path, part, config)
    cause = error.__cause__ or error
    match = re.match(r"Key '(\w+)' is not in struct", str(cause))
    if match:
        return (
            f"{key} has no key {match[1]}; set it alone with +{key}.{match[1]}=..., or make an"
            " option of your own."
        )
    return _wrong_type(key, select(config, key), first_line(cause))


def _wrong_type(key: str, current: object, message: str) -> str:
    """Explain that a value has another type than a key, which is typed only if it is Hydra's."""
    if isinstance(current, DictConfig) or "Dict[" in message:
        return f"should be a mapping of keys to values; e.g. '{key}={{key: value}}'."
    if isinstance(current, ListConfig) or "List[" in message:
        return f"should be a list; e.g. '{key}=[value]'."
    example = "" if current is None else f"; e.g. {key}={show(current)}"
    return f"{message.rstrip('.')}{example}."


def _unknown_key(override: Override, config: DictConfig) -> str:
    """Return the message for a first part that is neither a group nor a top-level key."""
    name, dot, rest = override.key_or_group.partition(".")
    keys = [str(key) for key in config if key != "hydra"]
    groups = [group for group in loader().list_groups("") if group != "hydra"]
    if name in groups:
        return f"no option of {name} is chosen; choose one with {name}=..."
    parts = {key: node for key in keys if isinstance(node := select(config, key), DictConfig)}
    # Only a mapping has keys below it.
    near = closest_name(name, [*(parts if rest else keys), *groups])
    if near:
        return f"no key {name}; did you mean {_rewritten(override, near + dot + rest)}?"
    inner = {
        str(key)
        for node in parts.values()
        for key in node
        if not rest or isinstance(select(node, str(key)), DictConfig)
    }
    below = closest_name(name, sorted(inner))
    if below:
        echoes = references(to_plain(config))
        owners = [
            key for key, node in parts.items() if below in node and f"{key}.{below}" not in echoes
        ]
        meant = " or ".join(_rewritten(override, f"{owner}.{below}{dot}{rest}") for owner in owners)
        return f"no key {name}; did you mean {meant}?"
    return f"no key {name}; a run has {', '.join(keys)}."


def _unknown_part(override: Override, path: str, part: str, config: DictConfig) -> str:
    """Return the message for a key that its node does not have."""
    node = select(config, path)
    keys = [str(key) for key in node]
    taken = parameters(node)
    others = options_with(composition_folders(to_plain(config.hydra.runtime)), path, part)
    if others:
        have = "has" if len(others) == 1 else "have"
        return f"no key {path}.{part}; {path}={', '.join(others)} {have} it."
    if override.is_delete() and part in taken:
        return "it is not set, so there is nothing to delete."
    near = closest_name(part, keys) or closest_name(part, taken)
    if near:
        rest = override.key_or_group.removeprefix(f"{path}.{part}")
        meant = _rewritten(override, f"{path}.{near}{rest}")
        return f"no key {path}.{part}; did you mean {meant}?"
    if not keys:
        return f"{path} has no keys yet; add one with +{override.input_line}."
    return f"no key {path}.{part}; {path} has {', '.join(keys)}."


def _rewritten(override: Override, key: str) -> str:
    _, equals, value = str(override.input_line).partition("=")
    return f"{'~' if override.is_delete() else ''}{key}{equals}{value}"
