"""Resolve all interpolations of a configuration, with an error for each that does not resolve."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from launcher.config.identity.locations import PLACEHOLDER
from launcher.config.identity.run_id import choices, without_id
from launcher.config.messages import ConfigIssue, MissingValue, hint, raise_issues
from launcher.config.omegaconf_nodes import resolve_at, to_plain
from launcher.config.options import composition_folders, options_with
from launcher.config.secrets import escape
from launcher.config.tree import (
    REFERENCE,
    Node,
    Tree,
    get,
    is_interpolation,
    join,
    map_leaves,
    walk,
    without,
)

UNRESOLVED = object()
"""Replaces a value that is already reported, so that no other rule reports it."""

UNSET = re.compile(r"Environment variable '(\w+)' not found")
UNKNOWN_RESOLVER = re.compile(r"Unsupported interpolation type (\S+)")


def as_yaml(plain: Node) -> str:
    """The text of a configuration as it is stored."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(plain)))


def references(tree: object) -> dict[str, str]:
    """Return the keys that take their value from another key, with that key."""
    matches = (
        (path, REFERENCE.fullmatch(value)) for path, value in walk(tree) if isinstance(value, str)
    )
    return {path: match[1] for path, match in matches if match}


@contextmanager
def hydra_config(config: DictConfig | None) -> Iterator[None]:
    """Within the context, Hydra's node of a configuration is what `HydraConfig` returns."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().cfg = config  # type: ignore[assignment]
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def resolve_part(config: DictConfig, path: str, left_out: Collection[str] = ()) -> Any:
    """Return a node of Hydra's as plain containers, resolved; values that are not set stay `???`.

    Args:
        config: the whole configuration.
        path: of the node.
        left_out: keys of the node that are left out.
    Raises:
        ConfigError: with a message for each interpolation that does not resolve.
    """
    node = OmegaConf.select(config, path)
    # A value of a wrong type is reported where it is read.
    if not isinstance(node, DictConfig):
        return node
    resolver, keys = Resolver(config, {}), tuple(path.split("."))

    def value(written: Any, below: tuple[Any, ...]) -> Any:
        if written == "???":
            return written
        return resolver.value(written, below)

    # The interpolations ${hydra:...} read it.
    with hydra_config(config):
        chosen = without(to_plain(node), *left_out)
        tree = map_leaves(chosen, value, keys)
    raise_issues(resolver.all_issues())
    return map_leaves(tree, lambda leaf, _: "???" if leaf is UNRESOLVED else leaf)


class Resolver:
    """Resolves a composed configuration, and collects the errors of its interpolations.

    Args:
        config: the configuration.
        tree: the same as plain containers, interpolations as written.
    """

    def __init__(self, config: DictConfig, tree: Node):
        self.config = config
        self.tree = tree
        self.issues: list[ConfigIssue] = []
        self.lacking: dict[str, dict[str, str]] = {}
        """Missing keys by group: the reference (`model.vocab_size=${data.vocab_size}`) -> the key
        that is missing."""
        self.unresolved: list[str] = []
        """Keys that refer to a key that does not resolve; without another error, in a circle."""
        self.names_job_number = False
        """True once an interpolation mentions the number of a job in its sweep."""

    def nodes(self) -> Tree:
        """Resolve all nodes but `run`, whose id is a hash of the others, and Hydra's."""
        with without_id():
            return {
                key: map_leaves(value, self.value, (key,))
                for key, value in self.tree.items()
                if key not in ("run", "hydra")
            }

    @property
    def has_issues(self) -> bool:
        return bool(self.issues or self.lacking or self.unresolved)

    def with_run(self, nodes: Node) -> Tree:
        """Return the whole tree, once the run has its id: `run`, and what refers to its id."""

        def value(leaf: object, keys: tuple[object, ...]) -> object:
            if isinstance(leaf, str) and PLACEHOLDER in leaf:
                return self.interpolate(leaf, keys)
            return leaf

        whole = {key: map_leaves(node, value, (key,)) for key, node in nodes.items()}
        if "run" in self.tree:
            # The run's name has been set since.
            run = self.config.run
            run = to_plain(run) if isinstance(run, DictConfig) else run
            whole["run"] = map_leaves(run, self.value, ("run",))
        return {key: whole[key] for key in self.tree if key in whole}

    def value(self, written: Any, keys: tuple[Any, ...]) -> Any:
        if written == "???":
            path = _join(keys)
            option = choices(self.config).get(str(keys[0]))
            see = f"; python -m launcher --help {keys[0]}={option} describes it"
            text = f"needs a value; e.g. {path}=...{see if isinstance(option, str) else ''}"
            self.issues.append(MissingValue(path, None, text))
            return UNRESOLVED
        if is_interpolation(written):
            return self.interpolate(written, keys)
        return written

    def interpolate(self, written: str, keys: tuple[object, ...]) -> object:
        self.names_job_number |= "job.num" in written or "job.id" in written
        try:
            value = resolve_at(self.config, keys)
        except OmegaConfBaseException as error:
            if not (keys[0] == "run" and self.has_issues):
                self.note(_join(keys), written, error)
            return UNRESOLVED
        if isinstance(value, dict | list):
            return map_leaves(value, self.value, keys)
        return value

    def note(self, path: str, written: str, error: Exception) -> None:
        """Report an interpolation that does not resolve."""
        if isinstance(error, InterpolationToMissingValueError):
            # The missing value is reported itself.
            return
        try:
            references = [name for name in REFERENCE.findall(written) if not self._exists(name)]
        except OmegaConfBaseException:
            # A key exists and does not resolve either, so it is reported itself.
            self.unresolved.append(f"{path}={written}")
            return
        shell = _for_shell(path, written)
        if references:
            group, _, name = references[0].partition(".")
            if name and choices(self.config).get(group):
                self.lacking.setdefault(group, {})[f"{path}={written}"] = name
                return
            near = hint(references[0], _list_dotted_keys(self.tree), "${{{}}}")
            text = f"there is no {references[0]}{shell or near}"
        elif unset := UNSET.search(str(error)):
            way = f"set it, or give a default: ${{oc.env:{unset[1]},...}}"
            text = f"the environment has no variable {unset[1]}; {way}{shell}"
        elif unknown := UNKNOWN_RESOLVER.search(str(error)):
            way = "register it in a module of the folder hydra_plugins/, which Hydra imports"
            text = f"there is no resolver {unknown[1]}; {way}{shell}."
        else:
            text = f"cannot be resolved: {str(error).splitlines()[0]}{shell}"
        self.issues.append(ConfigIssue(path, written, text))

    def _exists(self, key: str) -> bool:
        value = OmegaConf.select(self.config, key, default=UNRESOLVED, throw_on_missing=False)
        return value is not UNRESOLVED

    def all_issues(self) -> list[ConfigIssue]:
        lacks = [self._lack(group, referring) for group, referring in self.lacking.items()]
        issues = self.issues + lacks
        if issues:
            return issues
        keys = " and ".join(self.unresolved)
        what = "refer to each other" if len(self.unresolved) > 1 else "refers to itself"
        if keys:
            return [ConfigIssue(keys, None, f"{what}; give a value instead.")]
        return []

    def _lack(self, group: str, referring: dict[str, str]) -> ConfigIssue:
        """Return one error for all keys that the chosen option of a group lacks."""
        folders = composition_folders(get(self.tree, "hydra.runtime"))
        having = [set(options_with(folders, group, name)) for name in referring.values()]
        fitting = [f"{group}={option}" for option in sorted(set.intersection(*having))]
        choose = f"choose {', '.join(fitting)} or " if fitting else ""
        names = " and no ".join(dict.fromkeys(referring.values()))
        keys = " ".join(f"{reference.partition('=')[0]}=..." for reference in referring)
        text = f"{group}={choices(self.config)[group]} has no {names}; {choose}set {keys} directly."
        return ConfigIssue(", ".join(referring), None, text)


def _for_shell(path: str, written: str) -> str:
    """Say how to write a shell's variable in a setting of the dispatch; "" elsewhere."""
    way = f"; for the shell's variable write {escape(written)}"
    return way if path.startswith("dispatch.") else ""


def _join(keys: tuple[object, ...]) -> str:
    return ".".join(map(str, keys))


def _list_dotted_keys(tree: Node) -> list[str]:
    nodes = ((key, node) for key, node in tree.items() if key != "hydra" and isinstance(node, dict))
    return [join(key, name) for key, node in nodes for name in node]
