"""The configuration of one run, made once from the composition and passed on."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config.compose.resolve import Resolver, as_yaml
from launcher.config.identity.job_number import find_job_numbers
from launcher.config.identity.lookup import RunIndex, check_identity, describe_changes, equivalent
from launcher.config.identity.record_entry import command_record
from launcher.config.identity.run_id import DERIVED, digest, identity_text, identity_to_hash
from launcher.config.messages import ConfigIssue, raise_issues
from launcher.config.omegaconf_nodes import settings_of, to_plain
from launcher.config.schema.declared import declared
from launcher.config.schema.run_length import with_steps
from launcher.config.schema.validate import check_hydra, check_tree
from launcher.config.secrets import config_to_store
from launcher.config.settings import RunSettings, TrainerSettings
from launcher.config.tree import Node, Tree, get, map_leaves, of_the_run
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.rundir.record_format import RecordData
from launcher.rundir.run_on_disk import RunOnDisk

logger = logging.getLogger(__name__)
UNNAMED = (ConfigError, OmegaConfBaseException, AttributeError, LookupError, TypeError, ValueError)
"""Errors of reading a configuration that breaks a rule, such as a text in place of a node."""
READ_BY_A_JOB = ("job.env_set", "callbacks")
"""Nodes of Hydra's that are read when a run starts."""


@dataclass(frozen=True)
class RunConfig:
    """A checked configuration. Classes and jobs read it as plain containers."""

    plain: Tree
    """The configuration, resolved, without Hydra's node."""
    written: Tree
    """The same with interpolations as they are written."""
    hydra: Tree | None = None
    """Hydra's node, interpolations as they are written, or None if no command composed it."""
    continued: RunOnDisk | None = None
    """The run of an equivalent configuration, under whose id this one continues."""

    @cached_property
    def stored(self) -> Tree:
        """The configuration as a run stores it; see `config_to_store`."""
        return config_to_store(self.written, self.plain)

    @cached_property
    def run(self) -> RunSettings:
        return settings_of(RunSettings, self.plain["run"])

    @cached_property
    def trainer(self) -> TrainerSettings:
        return settings_of(TrainerSettings, self.plain["trainer"])

    @property
    def folder(self) -> RunFolder:
        return RunFolder(Path(self.plain["run"]["dir"]))

    @property
    def seed(self) -> int:
        return int(self.plain["seed"])

    @property
    def device(self) -> str:
        return str(self.plain["device"])

    @property
    def outputs(self) -> str:
        """`paths.outputs`."""
        return str(self.plain["paths"]["outputs"])

    @property
    def name(self) -> str:
        """`<run.name>/<run.id>`."""
        return f"{self.run.name}/{self.run.id}"

    @property
    def trains(self) -> bool:
        return bool(declared(get(self.plain, "job._target_"), "trains"))

    @property
    def of_the_run(self) -> Tree:
        """The configuration as it is stored, without the nodes that a run does not depend on."""
        return of_the_run(self.stored)

    @cached_property
    def stored_yaml(self) -> str:
        """The text of `of_the_run`, as runs and checkpoints have it."""
        return as_yaml(self.of_the_run)

    @property
    def overrides(self) -> list[str]:
        """The typed overrides."""
        return [str(word) for word in get(self.hydra, "overrides.task", ())]

    @property
    def choices(self) -> Tree:
        """The chosen option of each group."""
        return dict(get(self.hydra, "runtime.choices", {}))

    @property
    def news(self) -> str:
        """The differences from the run that it continues, in a line, or ""."""
        if self.continued is None:
            return ""
        return describe_changes(self.plain["run"], self.continued)

    @property
    def continuation(self) -> str | None:
        """The line that names the run which it continues, if it is of another configuration."""
        if self.continued is None:
            return None
        how = f": {self.news}" if self.news else ", by `runs adopt`"
        return f"Continues {self.run.id}{how}."

    @property
    def record(self) -> RecordData:
        """The command as run.json stores it."""
        return command_record(self.stored, self.hydra)

    def with_trees(self, change: Callable[[Tree], Node]) -> "RunConfig":
        """Return a copy whose trees are changed."""
        return replace(self, plain=dict(change(self.plain)), written=dict(change(self.written)))

    def with_steps(self, steps: float) -> "RunConfig":
        """Return a copy with another `trainer.max_steps`."""
        return self.with_trees(partial(with_steps, steps=steps))

    def replace(self, values: Mapping[str, object]) -> "RunConfig":
        """Return a copy with other values, by dotted key."""
        return self.with_trees(partial(replace_values, values=values))

    def save(self, file: Path) -> None:
        """Write it for `load_job` in another process."""
        save_job(file, self.stored, self.hydra)


def replace_values(tree: Node, values: Mapping[str, object]) -> Tree:
    """Return a copy of a tree with other values; the nodes that stay are shared."""
    copy = dict(tree)
    for path, value in values.items():
        *parents, name = path.split(".")
        node = copy
        for key in parents:
            node[key] = dict(node.get(key) or {})
            node = node[key]
        node[name] = value
    return copy


def read(config: DictConfig, runs: RunIndex | None = None) -> tuple[RunConfig, list[ConfigIssue]]:
    """Resolve a composed configuration, and name its run; see `check`.

    Returns:
        The configuration, and the errors of its interpolations.
    """
    if "hydra" in config:
        # The interpolations ${hydra:...} read it.
        HydraConfig.instance().cfg = config  # type: ignore[assignment]
        config.hydra.runtime.output_dir = "${launcher.absolute:${run.dir}}"
    written = to_plain(config)
    resolver = Resolver(config, written)
    nodes = resolver.nodes()
    continued = None if resolver.has_issues else _name(config, written, nodes, runs)
    plain = resolver.with_run(nodes)
    job_numbers = []
    if resolver.names_job_number and "hydra" in written and not resolver.has_issues:
        job_numbers = find_job_numbers(config, written)
    hydra = written.pop("hydra", None)
    if not resolver.has_issues:
        for part in READ_BY_A_JOB:
            map_leaves(get(hydra, part, {}), resolver.value, ("hydra", *part.split(".")))
    return RunConfig(plain, written, hydra, continued), resolver.all_issues() or job_numbers


def check(config: DictConfig, runs: RunIndex | None = None) -> RunConfig:
    """Check a composed configuration, and name its run; report every error.

    Args:
        config: as composed, with its `hydra` node. Its run gets its name, id and folder.
        runs: the runs on disk, among which an equivalent one is looked for. Default None: none.
    """
    run, issues = read(config, runs)
    written = {**run.written, "hydra": run.hydra or {}}
    check_hydra(run.hydra)
    check_tree(run.plain, written, run.stored, issues)
    if runs is not None:
        check_identity(run.plain["run"])
    return run


def _name(
    config: DictConfig, written: Tree, plain: Tree, runs: RunIndex | None
) -> RunOnDisk | None:
    """Set the name, id, identity and folder of a run; return an equivalent run on disk."""
    try:
        hashed = identity_to_hash(config, written, plain)
        own = digest(hashed)
        config.run.name = config.run.name
        if written["run"]["id"] == DERIVED:
            config.run.id = own
        text = identity_text(own, hashed)
        OmegaConf.update(config, "run.identity", text, force_add=True)
        folder = Path(config.run.dir)
        is_own = config.run.id == own
    # A configuration that breaks a rule may have no name, and the rule says why.
    except UNNAMED:
        logger.debug("The run has no name", exc_info=True)
        return None
    if runs is None or not is_own:
        return None
    existing = equivalent(folder, json.loads(text)["identity"], runs)
    if existing is not None:
        config.run.id = existing.folder.path.name
        if folder.name == own:
            config.run.dir = existing.path
    return existing


def read_tree(source: Path | str) -> Tree:
    """Read the configuration in a file of a run, or in its text, as it is stored."""
    return to_plain(
        OmegaConf.load(source) if isinstance(source, Path) else OmegaConf.create(source)
    )


def resolve_node(stored: Node, key: str) -> Any:
    """Return one node of a stored configuration, resolved."""
    config: Any = OmegaConf.create(dict(stored))
    try:
        return OmegaConf.to_container(config[key], resolve=True)
    except OmegaConfBaseException as error:
        resolver = Resolver(config, {key: stored[key]})
        resolver.nodes()
        raise ConfigError(*map(str, resolver.all_issues())) from error


def save_job(file: Path, stored: Node, hydra: Node | None) -> None:
    """Write a configuration as it is stored, for `load_job` in another process."""
    OmegaConf.save(OmegaConf.create({"config": dict(stored), "hydra": hydra}), file)


def load_job(file: Path) -> RunConfig:
    """Return the configuration that `save_job` has written."""
    job: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    return from_stored(job["config"], job["hydra"])


def from_stored(tree: Node, hydra: Node | None = None) -> RunConfig:
    """Return a configuration that was checked before it was stored, with Hydra's node."""
    config = OmegaConf.create(dict(tree) if hydra is None else {**tree, "hydra": hydra})
    HydraConfig.instance().cfg = None if hydra is None else config  # type: ignore[assignment]
    resolver = Resolver(config, tree)
    plain = resolver.with_run(resolver.nodes())
    raise_issues(resolver.all_issues())
    return RunConfig(plain, dict(tree), None if hydra is None else dict(hydra))
