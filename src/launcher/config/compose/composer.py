"""Composes the configurations of a command.

The groups are composed by Hydra, once for each set of choices. The values are applied to a copy,
and every error among them is collected with its suggestion.
"""

import hashlib
import pickle
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

from hydra import compose as hydra_compose
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from launcher.config.compose.diagnose import (
    bad_key,
    bad_option,
    explain_base_error,
    unknown_option,
    unreadable,
)
from launcher.config.compose.grid import GRID, bare_key, check_swept, expand, list_values
from launcher.config.compose.overrides import (
    apply_value,
    is_group,
    is_setting,
    normalize,
    parse,
    record_overrides,
    typed_keys,
    typed_searchpath,
)
from launcher.config.compose.resolve import resolve_part
from launcher.config.compose.session import (
    COMPOSITION_ERRORS,
    MISSING_FOLDER,
    NO_MAPPING,
    loader,
    session,
)
from launcher.config.identity.lookup import RunIndex
from launcher.config.messages import closest_name
from launcher.config.omegaconf_nodes import to_plain
from launcher.config.options import COLLECTIONS
from launcher.config.run_config import RunConfig, check
from launcher.config.tree import Tree
from launcher.errors import ConfigError

NOT_IN_NAME = ("tracker", "dispatch", "hydra", "paths", "device", "run.resume")
"""Keys whose values do not name a sweep."""
MAX_CACHED = 64
"""Maximum number of cached compositions of groups, about 300 kB each."""


class Composer:
    """Composes groups once (100 ms), and applies values to copies (1 ms), in Hydra's session."""

    def __init__(self, config_name: str = "config"):
        self.config_name = config_name
        self._composed: dict[tuple[str, ...], bytes | Exception] = {}
        """Pickled: `deepcopy` takes four times as long."""
        self._is_group = cache(lambda text: is_group(parse(text), loader()))

    def compose(
        self,
        overrides: Sequence[Override],
        issues: Sequence[str] = (),
        reported: dict[object, str] | None = None,
    ) -> DictConfig:
        """Compose a configuration with its `hydra` node; it is not checked.

        Args:
            overrides: of one run.
            issues: messages about other overrides of the command.
            reported: messages by key and groups, which gets further ones. Jobs of a sweep share it,
                so that another value of a key is not another mistake.
        """
        reported = {} if reported is None else reported
        messages, bad_keys = list(issues), set[str]()
        values = [override for override in overrides if self.is_value(override)]
        chosen = [override for override in overrides if override not in values]
        config, bad_groups = self._choose(chosen, messages)
        for override in values:
            key = override.key_or_group
            if key in bad_keys:
                continue
            try:
                apply_value(override, config)
            except COMPOSITION_ERRORS as error:
                bad_keys.add(key)
                if "." not in key and (group := closest_name(key, loader().list_groups(""))):
                    bad_groups.add(group)
                problem_key = (key, str(config.hydra.runtime.choices))
                if problem_key not in reported:
                    problem = bad_key(override, config, error)
                    reported[problem_key] = f"{override.input_line}: {problem}"
                messages.append(reported[problem_key])
        if messages:
            raise ConfigError(*dict.fromkeys([*messages, *_further(config, bad_groups, bad_keys)]))
        record_overrides(overrides, config)
        return config

    def groups(self, words: Sequence[str]) -> DictConfig:
        """Compose overrides of groups, and of Hydra's own node."""
        key = tuple(words)
        if key not in self._composed:
            if len(self._composed) >= MAX_CACHED:
                self._composed.clear()
            try:
                with warnings.catch_warnings():
                    # A missing folder is an error already, see `schema.validate.check_hydra`.
                    warnings.filterwarnings("ignore", MISSING_FOLDER, UserWarning)
                    config = hydra_compose(self.config_name, [*words], return_hydra_config=True)
                groups = (*config.hydra.runtime.choices, *COLLECTIONS)
                if any(OmegaConf.is_list(config.get(group)) for group in groups):
                    raise TypeError(NO_MAPPING)
                self._composed[key] = pickle.dumps(config)
            except COMPOSITION_ERRORS as error:
                self._composed[key] = error
        result = self._composed[key]
        if isinstance(result, Exception):
            raise result
        composed: DictConfig = pickle.loads(result)
        return composed

    def is_value(self, override: Override) -> bool:
        """Return whether an override sets a value, and neither chooses options nor is Hydra's."""
        return not (
            override.is_hydra_override()
            or override.key_or_group == "hydra"
            or self._is_group(str(override.input_line))
        )

    def _choose(self, chosen: Sequence[Override], issues: list[str]) -> tuple[DictConfig, set[str]]:
        """Compose the chosen options that compose.

        Returns:
            The configuration, and the groups about which there is a message.
        """
        words, bad_groups = [], set()
        for override in chosen:
            is_option = self._is_group(str(override.input_line))
            if is_option and (issue := unknown_option(override)):
                issues.append(f"{override.input_line}: {issue}")
                bad_groups.add(override.key_or_group)
            else:
                words.append(str(override.input_line))
        with suppress(*COMPOSITION_ERRORS):
            return self.groups(words), bad_groups
        try:
            self.groups([])
        except COMPOSITION_ERRORS as error:
            raise ConfigError(*issues, explain_base_error(self.config_name, error)) from error
        good: list[str] = []
        for text in words:
            try:
                self.groups([*good, text])
                good.append(text)
            except COMPOSITION_ERRORS as error:
                override = parse(text)
                if self._is_group(text):
                    issues.append(f"{text}: {bad_option(error)}")
                    bad_groups.add(override.key_or_group.partition("/")[0])
                else:
                    issues.append(f"{text}: {bad_key(override, self.groups(good), error)}")
        return self.groups(good), bad_groups


def _further(config: DictConfig, bad_groups: set[str], bad_keys: set[str]) -> list[str]:
    """Return messages about the rest, but not about a key or a group's default in error."""
    patterns = [rf"\b{re.escape(group)}[.=]" for group in bad_groups]
    patterns += [rf"^{re.escape(key)}\b" for key in bad_keys]
    try:
        check(config)
    except ConfigError as error:
        return [text for text in error.messages if not any(re.search(p, text) for p in patterns)]
    return []


class Command:
    """The overrides of a command line, in Hydra's session: one run, or the jobs of a sweep.

    Args:
        overrides: as they are typed.
        config_name: the primary configuration.
        mode: the mode that a flag sets. Default None: as `hydra.mode` of the configuration.
    """

    def __init__(
        self,
        overrides: Sequence[str],
        config_name: str = "config",
        mode: RunMode | None = None,
    ):
        self.composer, self.runs = Composer(config_name), RunIndex()
        self.issues: list[str] = []
        """Messages about overrides that cannot be read."""
        self._typed = overrides
        words = [normalize(override) for override in overrides]
        everything = read_overrides(words, True, [])
        self.is_sweep = (mode or self._mode(everything)) == RunMode.MULTIRUN
        self.overrides = read_overrides(words, self.is_sweep, self.issues)
        if self.is_sweep:
            self._hydra = [each for each in self.overrides if each.is_hydra_override()]
            check_swept(self.overrides)
            self.sweep = sweep_name(self.user_overrides)

    def _mode(self, overrides: Sequence[Override]) -> RunMode | None:
        try:
            mode: RunMode | None = self._groups_of(overrides).hydra.mode
        except COMPOSITION_ERRORS:
            return None
        return mode

    def _groups_of(self, overrides: Sequence[Override]) -> DictConfig:
        fixed = [each for each in overrides if not each.is_sweep_override()]
        chosen = [each for each in fixed if not self.composer.is_value(each)]
        return self.composer.groups([str(each.input_line) for each in chosen])

    @property
    def user_overrides(self) -> list[str]:
        """The overrides but for Hydra's own."""
        return [str(each.input_line) for each in self.overrides if not each.is_hydra_override()]

    def report_unused(self) -> None:
        """Add a message for each typed override without effect in a command that does not search.

        They are the settings of a search, and without `-m` what runs a sweep.
        """
        for override in self._typed:
            if is_setting(override):
                needed = "is a setting of a search, which needs -m hydra/sweeper=optuna"
            elif not self.is_sweep and override.startswith(("hydra/launcher=", "hydra/sweeper=")):
                needed = "has no effect without -m"
            else:
                continue
            self.issues.append(f"{override}: {needed}; add that, or leave it out.")

    # ------------------------------------------------------------------------------------- one run
    def config(self) -> DictConfig:
        """Compose the run, unchecked."""
        config = self.composer.compose(self.overrides, self.issues)
        config.hydra.mode = RunMode.RUN
        return config

    def check(self, config: DictConfig) -> RunConfig:
        """Check the run that `config` has composed."""
        return check(config, self.runs)

    def run(self) -> RunConfig:
        """Compose and check the run."""
        self.report_unused()
        return self.check(self.config())

    def explicit(self) -> list[str]:
        """Return the overrides for Hydra's own composition, once they are known to apply.

        It needs `++` for constructor arguments that the YAML files leave out, and the numbers of
        ranges, to which it adds rounding errors.
        """
        words = []
        for override in self.overrides:
            text = str(override.input_line)
            if override.is_range_sweep():
                text = f"{override.get_key_element()}={','.join(list_values(override))}"
            is_change = override.type == OverrideType.CHANGE and self.composer.is_value(override)
            words.append(f"++{text}" if is_change else text)
        return words

    # ------------------------------------------------------------------------------------- a sweep
    @cached_property
    def master(self) -> DictConfig | None:
        """The configuration of the values that all jobs share, or None if no groups compose.

        Values that only some options of the sweep have are left out.
        """
        try:
            config = self._groups_of(self.overrides)
        except COMPOSITION_ERRORS:
            # A group may have no option but the options of the sweep.
            try:
                (first, *_) = expand(self.overrides, with_intervals=True)
                config = self._groups_of([parse(text) for text in first])
            except (ConfigError, *COMPOSITION_ERRORS):
                return None
        for override in self.overrides:
            if self.composer.is_value(override) and not override.is_sweep_override():
                with suppress(*COMPOSITION_ERRORS):
                    apply_value(override, config)
        record_overrides(self.overrides, config)
        config.hydra.mode = RunMode.MULTIRUN
        return config

    def choice(self, group: str) -> object:
        """Return the option of one of Hydra's groups, or None if that is not known."""
        return self._choices.get(group)

    @cached_property
    def _choices(self) -> dict[str, object]:
        return {} if self.master is None else to_plain(self.master.hydra.runtime.choices)

    @property
    def batch_size(self) -> int | None:
        """Return the number of jobs that start at a time, or None for all."""
        size = self._sweeper.get("max_batch_size")
        return None if size is None else int(size)

    @cached_property
    def _sweeper(self) -> Tree:
        """The settings of the sweeper, resolved."""
        return {} if self.master is None else resolve_part(self.master, "hydra.sweeper")

    def expand(self) -> list[list[str]]:
        """Return the overrides of each job, with the values of `hydra.sweeper.params`.

        A typed value replaces the values of its key there.
        """
        params = self._sweeper.get("params") or {}
        typed = [each for each in self.overrides if not each.is_hydra_override()]
        is_typed = {bare_key(override) for override in typed}
        words = [normalize(f"{key}={params[key]}") for key in params]
        of_params = [
            override
            for override in read_overrides(words, True, self.issues)
            if bare_key(override) not in is_typed
        ]
        return expand(
            [*of_params, *typed],
            with_intervals=self.choice("hydra/sweeper") != GRID,
        )

    def job(
        self, overrides: Sequence[str], number: int = 0, reported: dict[object, str] | None = None
    ) -> RunConfig:
        """Compose and check one job of a sweep; `reported` as in `Composer.compose`."""
        typed = [*self._hydra, *map(parse, overrides)]
        config = self.composer.compose(typed, reported=reported)
        config.hydra.mode = RunMode.MULTIRUN
        config.hydra.job.id, config.hydra.job.num = str(number), number
        if config.run.get("sweep") is None:
            OmegaConf.update(config, "run.sweep", self.sweep, force_add=True)
        return check(config, self.runs)


def read_overrides(overrides: Sequence[str], is_sweep: bool, issues: list[str]) -> list[Override]:
    """Parse overrides, and add a message to `issues` for each that cannot be read."""
    parsed = []
    for text in overrides:
        try:
            if text.startswith("="):
                raise ValueError("it has no key")
            # A glob needs the loader.
            override = replace(parse(text), config_loader=loader())
        except (HydraException, ValueError) as error:
            issues.append(unreadable(text, error))
            continue
        if override.is_sweep_override() and not is_sweep:
            key, value = override.get_key_element(), text.partition("=")[2]
            issues.append(
                f"{text}: several values make a sweep, which needs -m; a list is {key}=[{value}]."
            )
        else:
            parsed.append(override)
    return parsed


def sweep_name(words: Iterable[str]) -> str:
    """Return a name for a sweep, the same when the command is repeated."""
    used = sorted(word for word in words if not word.lstrip("+~").startswith(NOT_IN_NAME))
    return f"sweep-{hashlib.sha256(chr(10).join(used).encode()).hexdigest()[:8]}"


@contextmanager
def command(
    overrides: Sequence[str],
    config_dir: str | Path | None = None,
    config_name: str = "config",
    mode: RunMode | None = None,
) -> Iterator[Command]:
    """Read a command line in a session of Hydra."""
    with session(config_dir, config_name, typed_searchpath(overrides), typed_keys(overrides)):
        yield Command(overrides, config_name, mode)


def compose(
    overrides: Sequence[str] = (), config_dir: str | Path | None = None, config_name: str = "config"
) -> DictConfig:
    """Compose the run of a command line, with its `hydra` node, without checks."""
    with command(overrides, config_dir, config_name, RunMode.RUN) as words:
        return words.config()


def not_applicable(
    values: Sequence[str], overrides: Sequence[str], config_dir: str | Path | None
) -> list[str]:
    """Return the values that do not apply to the groups that all overrides choose."""
    with command(overrides, config_dir) as words:
        try:
            config = words._groups_of(words.overrides)
        except COMPOSITION_ERRORS:
            return []
        return [value for value in values if not _applies(value, config)]


def _applies(value: str, config: DictConfig) -> bool:
    try:
        apply_value(parse(normalize(value)), config)
    except COMPOSITION_ERRORS:
        return False
    return True
