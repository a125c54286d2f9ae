"""Runs Hydra in process. The only module that uses private names of Hydra and OmegaConf."""

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydra import __version__, initialize_config_dir, initialize_config_module

# Public Hydra applies values only together with composing the groups, which takes 100 ms.
from hydra._internal.config_loader_impl import ConfigLoaderImpl

# Hydra documents its flags, but has no public parser for them.
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.types import RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.config.compositions import dirname, is_group, parse, task_words
from launcher.config.messages import reason
from launcher.config.options import config_path
from launcher.config.signature import signature
from launcher.config.source import NotFound

VERSION: dict[str, Any] = {"version_base": "1.3"} if __version__.startswith("1.3.") else {}
"""Hydra 1.3 warns without `version_base`, Hydra 1.4 warns with it."""
BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""The class of `hydra/sweeper=basic`. Hydra has no public name for it, and shows only the class."""
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, TypeError, AssertionError)
"""What Hydra raises for a bad command line or a bad YAML file."""


@contextmanager
def session(config_dir: str | Path | None, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Set Hydra up with our configuration folder and the user's, as its command line does."""
    folders: list[Any] = [f"file://{Path(config_dir).absolute()}"] if config_dir else []
    for override in overrides:
        if override.startswith("hydra.searchpath="):
            folders += parse(override).value()  # type: ignore[arg-type]
    path = config_path()
    if path.startswith("pkg://"):
        hydra: Any = initialize_config_module(path.removeprefix("pkg://"), **VERSION)
    else:
        hydra = initialize_config_dir(path, **VERSION)
    application: Any = GlobalHydra.instance().hydra
    application.config_loader = GroupsFirst(application.config_loader.config_search_path)
    with hydra:
        config_loader = loader()
        for folder in folders:
            anchor = SearchPathQuery(provider="schema")
            config_loader.config_search_path.prepend("command-line", folder, anchor=anchor)
        config_loader.repository.initialize_sources(config_loader.config_search_path)
        yield


class ModeIsSet(Exception):
    """A YAML file sets `hydra.mode` to MULTIRUN."""


def show_config(config_name: str, overrides: Sequence[str], part: str, package: str | None, resolves: bool) -> None:
    """What `hydra.main` does for `--cfg`, in the current session."""
    application: Any = GlobalHydra.instance().hydra
    application.show_cfg(config_name, list(overrides), part, package, resolves)


def run_application(task: TaskFunction, config_name: str, overrides: Sequence[str], multirun: bool) -> None:
    """What `hydra.main` does for a command line whose mode is known, in the current session: the configuration is
    composed once.

    Raises:
        ModeIsSet: not `multirun`, but the configuration asks for it.
    """
    application: Any = GlobalHydra.instance().hydra
    if multirun:
        mode = ["hydra.mode=MULTIRUN"]
        application.multirun(config_name=config_name, task_function=task, overrides=[*overrides, *mode])
        return
    try:
        application.run(config_name=config_name, task_function=task, overrides=list(overrides))
    except (AssertionError, HydraException) as error:
        # Hydra 1.3 asserts the mode without a text, Hydra 1.4 explains. Either compares it before a job starts.
        if isinstance(error, HydraException) and "hydra.mode changed" not in str(error):
            raise
        config = loader().load_configuration(config_name, list(overrides), RunMode.RUN)
        if config.hydra.mode != RunMode.MULTIRUN:
            raise
        raise ModeIsSet from error


class GroupsFirst(ConfigLoaderImpl):
    """Composes a run's groups, and applies its values to a copy. If a value does not apply, the diagnosis needs the
    composed groups again, and composing them takes 100 ms."""

    def __init__(self, search_path: Any):
        super().__init__(search_path)
        self._composed: tuple[Any, DictConfig] | None = None
        """The last composed groups, after the names that they were composed from; never changed."""

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Overrides Hydra's method.

        Raises:
            hydra.errors.HydraException, omegaconf.errors.OmegaConfBaseException: it does not compose.
        """

        def compose(words: list[str]) -> DictConfig:
            return super(GroupsFirst, self).load_configuration(
                config_name, words, run_mode, from_shell, validate_sweep_overrides
            )

        parsed = [parse(override) for override in overrides] if run_mode == RunMode.RUN else []
        values = [override for override in parsed if self._is_value(override)]
        groups = [str(override.input_line) for override in parsed if override not in values]
        is_composed = self._composed is not None and self._composed[0] == (config_name, groups)
        if not values and not is_composed:
            return compose(overrides)
        if not is_composed:
            try:
                self._composed = (config_name, groups), compose(groups)
            except COMPOSITION_ERRORS:
                return compose(overrides)
        assert self._composed is not None
        if self._composed[1].hydra.searchpath:  # it may have groups that look like values
            config = compose([str(_with_plus(override, self._composed[1]).input_line) for override in parsed])
            config.hydra.overrides.task = task_words(parsed)
            return config
        return with_values(self._composed[1], values, parsed)

    def _is_value(self, override: Override) -> bool:
        """Whether Hydra applies an override after it has composed the groups, and it does not change Hydra's node."""
        key = override.key_or_group
        is_hydras = override.is_hydra_override() or key == "hydra" or override.is_sweep_override()
        return not is_hydras and not is_group(override, self)


def loader() -> Any:
    """The config loader of the current session."""
    return GlobalHydra.instance().config_loader()


def first_line(error: BaseException) -> str:
    """The first line of an error's message, as a sentence; both lines of Hydra's on a key that does not exist."""
    if "To append to your config use +" in str(error):
        return f"{' '.join(str(error).split())}."
    if isinstance(error, YAMLError):
        return f"The configuration cannot be read as YAML: {' '.join(str(error).split())}."
    return f"{reason(error)}."


def flag_parser() -> ArgumentParser:
    """The parser of Hydra's command line."""
    parser: ArgumentParser = get_args_parser()
    return parser


def apply_values(overrides: Sequence[Override], config: DictConfig) -> None:
    """Change, add or delete values of a composed configuration. A key that its node does not have is added without a
    `+` if the node's `_target_` takes it.

    Raises:
        hydra.errors.HydraException: an override does not apply.
    """
    for override in overrides:
        ConfigLoaderImpl._apply_overrides_to_config([_with_plus(override, config)], config)


def _with_plus(override: Override, config: DictConfig) -> Override:
    """`++key=value` if the key's node does not have it and its `_target_` takes it, else the override as it is."""
    path, _, name = override.key_or_group.rpartition(".")
    if override.type != OverrideType.CHANGE or override.package is not None or not path:
        return override
    node = OmegaConf.select(config, path, throw_on_missing=False, throw_on_resolution_failure=False)
    is_new = isinstance(node, DictConfig) and name not in node and name in parameters(node)
    return parse(f"++{override.input_line}") if is_new else override


def parameters(node: DictConfig) -> list[str]:
    """The arguments that a node's `_target_` takes."""
    try:
        spec = signature(str(node.get("_target_", "")))
    except (NotFound, OmegaConfBaseException):
        return []
    return spec.names if spec else []


def with_values(groups: DictConfig, values: Sequence[Override], overrides: Sequence[Override]) -> DictConfig:
    """A copy of composed groups with values applied to it, and with all overrides in Hydra's own lists.

    Raises:
        hydra.errors.HydraException: a value does not apply.
    """
    config = deepcopy(groups)
    apply_values(values, config)
    config.hydra.overrides.task = task_words(overrides)
    if not OmegaConf.is_interpolation(config.hydra.job, "override_dirname"):  # since Hydra 1.4, it follows the list
        config.hydra.job.override_dirname = dirname(overrides, config.hydra.job)
    return config


def returned(result: JobReturn) -> Any:
    """What a job returned, or the exception that it raised."""
    # The public `return_value` raises the exception of a failed job, and prints a line on stderr first.
    return result._return_value
