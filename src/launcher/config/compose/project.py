"""A project's own defaults: the `config.yaml` of its folder of options.

They are composed after Launcher's values, and before the preset and the command line. Hydra finds
them under the name `NAME`, which is in the defaults list of Launcher's own `config.yaml`.
"""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.config import plain_yaml
from launcher.config.identity.difference import is_within
from launcher.config.messages import reason
from launcher.config.omegaconf_nodes import to_plain
from launcher.config.options import (
    COLLECTIONS,
    IGNORED,
    PROJECT_FILE,
    installed_folders,
    main_folder,
    options,
    project_file,
)
from launcher.config.settings import SECTIONS, Top, section
from launcher.config.tree import Node, as_list, flat, get, without
from launcher.errors import ConfigError
from launcher.rundir.record_format import read_record

NAME = "_project_"
SET_BY_LAUNCHER = ("hydra/help", "hydra/job_logging", "hydra/hydra_logging")
"""Groups for which only Launcher chooses."""
OF_COMMAND = "experiment"
"""The group that is chosen on the command line."""
KEY = re.compile(r"[\w./@-]+")


@contextmanager
def project_defaults(folder: str | Path | None, typed: Collection[str]) -> Iterator[None]:
    """Let Hydra find the defaults of a folder of options, if it has any, within the context.

    Args:
        folder: the folder, or None if there is none.
        typed: the keys that the command line sets. Errors of other keys are the file's.
    Raises:
        ConfigError: the file does not fit, with all that does not and the way out.
    """
    file = None if folder is None else project_file(Path(folder))
    if file is None:
        with _stored({}):
            yield
        return
    content = _read(file)
    part = _as_part(file, content)
    try:
        with _stored(part):
            yield
    except ConfigError as error:
        raise ConfigError(*_with_file(file, content, typed, error.messages)) from error


@contextmanager
def _stored(part: Node) -> Iterator[None]:
    """Let Hydra find a part under the name `NAME` within the context."""
    store = ConfigStore.instance()
    before = store.load(f"{NAME}.yaml").node if f"{NAME}.yaml" in store.repo else {}
    store.store(NAME, part, provider="launcher")
    try:
        yield
    finally:
        store.store(NAME, before, provider="launcher")


def reject_stored(flag: str, folder: Path, name: str = "config") -> None:
    """Say what to type in place of a folder that holds the configuration of a run."""
    run = next((each for each in (folder, folder.parent) if (each / "run.json").is_file()), None)
    if run is None and not _is_stored(folder / f"{name}.yaml"):
        return
    text = f"{flag}={folder}: is the stored configuration of a run, and no folder of options"
    if run is None:
        raise ConfigError(f"{text}; repeat the command of that run.")
    verbs = f"`python -m launcher.runs resume {run}` continues it, `fork` starts another from it"
    try:
        words = read_record(run / "run.json").get("overrides") or []
    except (OSError, ValueError):
        raise ConfigError(f"{text}; {verbs}.") from None
    command = shlex.join(["python", "-m", "launcher", *words])
    raise ConfigError(f"{text}; {verbs}, and its command was `{command}`.")


def _is_stored(file: Path) -> bool:
    try:
        tree = plain_yaml.load(file.read_bytes())
    except (OSError, YAMLError, UnicodeDecodeError):
        return False
    return get(tree, "job._target_") is not None and get(tree, "run.id") is not None


def _read(file: Path) -> Node:
    try:
        content: Any = OmegaConf.load(file)
    except (OSError, YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        text = " ".join(str(error).split()) if isinstance(error, YAMLError) else reason(error)
        raise ConfigError(f"{file}: cannot be read: {text}.") from error
    if not isinstance(content, DictConfig):
        raise ConfigError(f"{file}: should have keys, such as `seed: 1`.")
    return to_plain(content)


def _as_part(file: Path, content: Node) -> Node:
    """Return the file's content, in which each choice overrides Launcher's.

    Raises:
        ConfigError: with all that does not fit.
    """
    folders = [main_folder(), file.parent, *installed_folders()]
    listed = content.get("defaults") or []
    problems = []
    if not isinstance(listed, list):
        problems = ["defaults should be a list"]
        listed = []
    more: list[object] = []
    changed: list[object] = []
    groups = _groups_of_launcher()
    for group, option in _entries(listed):
        if group is None:
            more.append(option)
        elif problem := _problem(group, option, folders):
            problems.append(problem)
        elif group in groups:
            changed.append({f"override /{group}": option})
        elif group != OF_COMMAND:
            more.append({f"/{group}": option})
    keys = [*section(Top).names, *SECTIONS, *COLLECTIONS, *_names(folders), "defaults", "hydra"]
    own = [key for key in content if key not in keys]
    problems += [f"no key {key}" for key in own if not _is_referred_to(key, file.parent)]
    if get(content, "hydra.searchpath") is not None:
        problems.append("hydra.searchpath is for the command line")
    if problems:
        text = f"does not fit Launcher, which composes it into each run ({', '.join(problems)})"
        raise ConfigError(f"{file}: {text}; {_way_out()}.")
    return {"defaults": [*more, "_self_", *changed], **without(content, "defaults")}


def _groups_of_launcher() -> list[str]:
    """Return the groups that Launcher's own defaults list chooses, but for the preset."""
    listed = plain_yaml.load((main_folder() / PROJECT_FILE).read_bytes())["defaults"]
    return [group for group, _ in _entries(listed) if group not in (None, OF_COMMAND)]


def _entries(listed: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the group, or None for another file, and the choice of each entry but `_self_`."""
    for entry in listed:
        if isinstance(entry, Mapping):
            for words, option in entry.items():
                # A key is `model`, `/model`, or `override /model`.
                yield str(words).split()[-1].lstrip("/"), option
        elif entry != "_self_":
            yield None, entry


def _names(folders: Sequence[Any]) -> set[str]:
    """Return the groups of Launcher and of installed packages."""
    return {entry.name for folder in (folders[0], *folders[2:]) for entry in folder.iterdir()}


def _problem(group: str, option: object, folders: Sequence[Any]) -> str | None:
    """Say why an entry of the defaults list does not fit, if it does not."""
    first = re.split("[/@]", group)[0]
    is_own = first not in _names(folders) and first != "hydra"
    if is_own and not _is_referred_to(first, folders[1]):
        return f"no group {group}"
    if group in SET_BY_LAUNCHER:
        return f"{group} is Launcher's own"
    if group == OF_COMMAND:
        if option is None:
            return None
        return f"{group} is for the command line"
    missing = _missing_option(group, option, folders)
    return f"no option {group}={missing}" if missing else None


def _missing_option(group: str, chosen: object, folders: Sequence[Any]) -> str | None:
    """Return a chosen option that a group does not have; Hydra's own groups are not looked at."""
    if chosen is None or group.startswith("hydra") or "@" in group:
        return None
    for name in map(str, as_list(chosen)):
        nested, _, last = name.removesuffix(".yaml").rpartition("/")
        among = options(folders, f"{group}/{nested}".rstrip("/"))
        if last not in among and "$" not in name:
            return name
    return None


def _is_referred_to(key: str, folder: Path) -> bool:
    """Return whether any file of the folder refers to a key of the project's own."""
    pattern = re.compile(rf"\$\{{{re.escape(key)}\b")
    return any(
        pattern.search(file.read_text(encoding="utf-8", errors="replace"))
        for file in folder.rglob("*.yaml")
    )


def _with_file(
    file: Path, content: Node, typed: Collection[str], messages: Sequence[str]
) -> list[str]:
    """Return the messages, with one for all keys that the file sets and no override does."""
    keys = flat(without(content, "defaults"))

    def is_of_file(message: str) -> bool:
        match = KEY.match(message)
        return match is not None and is_within(match[0], keys) and not is_within(match[0], typed)

    of_file = [message.rstrip(".") for message in messages if is_of_file(message)]
    if not of_file:
        return list(messages)
    text = f"{file}: does not fit this command: {'; '.join(of_file)}; {_way_out()}."
    return [text, *(message for message in messages if not is_of_file(message))]


def _way_out() -> str:
    return (
        f"correct it, or begin it with the line `{IGNORED}` if it is another program's, or choose"
        " another folder by --config-dir=FOLDER"
    )
