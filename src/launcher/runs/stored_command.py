"""Check a stored command line, which may be somebody else's, before a verb repeats it."""

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import HydraException

from launcher.config.compose import compose
from launcher.config.messages import reason
from launcher.config.options import own_folder
from launcher.config.overrides import normalize, parse
from launcher.config.plain import to_plain
from launcher.config.resolve import Resolver
from launcher.config.trust import Origin, names_in_files, names_typed
from launcher.errors import ConfigError
from launcher.runs.stored_run import StoredRun


def check_stored(run: StoredRun, stored: Sequence[str]) -> None:
    """Check stored overrides, before they are composed."""
    for word in stored:
        if reaches_out(word):
            origin_of(run).reject(word, "says so")
    config_folder(run)


def check_words(run: StoredRun, typed: Sequence[str], words: Sequence[str]) -> None:
    """Check all overrides of a command (`words`), of which the user has typed some (`typed`)."""
    folder = config_folder(run)
    config = compose(words, folder or own_folder())
    # The command rejects interpolations that do not resolve.
    written = to_plain(config)
    resolver = Resolver(config, written)
    tree = resolver.with_run(resolver.nodes())
    names = [*names_typed(typed), *names_in_files([folder])]
    origin_of(run).check(tree, written, names, retype=True)


def config_folder(run: StoredRun) -> Path | None:
    folder, origin = run.record.get("config_dir"), origin_of(run)
    if folder is not None and not origin.in_project(Path(folder)):
        where = "names it, which is outside the project"
        origin.reject(
            f"--config-dir {folder}", where, ", or type this command in the project's folder"
        )
    return None if folder is None else Path(folder)


def reaches_out(word: str) -> bool:
    """Return whether a stored override chooses configuration files or changes what Hydra runs."""
    try:
        override = parse(normalize(word))
        value = override.value()
        values = value if isinstance(value, list) else [value]
    except (HydraException, ValueError) as error:
        raise ConfigError(f"{word}: {reason(error)}.") from error
    keys = re.split(r"[./@:]", f"{override.key_or_group}@{override.package}")
    is_option = "." not in override.key_or_group
    return "hydra" in keys or (
        is_option and any(".." in Path(str(value)).parts for value in values)
    )


def origin_of(run: StoredRun) -> Origin:
    return Origin(run.folder.record_path, run.folder.path)
