"""Say why two commands made two runs: the keys in which their identities differ."""

import argparse
from pathlib import Path

from rich.text import Text

from launcher.config.messages import as_typed
from launcher.config.tree import flat
from launcher.errors import ConfigError
from launcher.rundir.record_format import read_record
from launcher.runs.compare import table
from launcher.runs.differences import varying
from launcher.runs.find import RUN_HELP, find_run
from launcher.runs.page import StdoutConsole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)


def run(arguments: argparse.Namespace) -> int:
    if len(arguments.runs) != 2:
        raise ConfigError("give two runs: why RUN RUN.")
    runs = [find_run(word, arguments.outputs) for word in arguments.runs]
    identities = [identity_of(stored.folder.record_path, stored.label) for stored in runs]
    keys = sorted(varying(identities))
    page = StdoutConsole()
    if not keys:
        page.print(
            Text(
                "Their identities are equal: one of them was named by run.id=..., or its folder was"
                " copied."
            )
        )
        return 0
    rows = {
        key: [as_typed(identity[key]) if key in identity else None for identity in identities]
        for key in keys
    }
    page.print(table("identity", rows, [stored.label for stored in runs]))
    return 0


def identity_of(path: Path, label: str) -> dict[str, object]:
    """Read the identity of a run.

    Raises:
        ConfigError: it is not stored, or cannot be read.
    """
    try:
        identity = read_record(path).get("identity")
    except (OSError, ValueError):
        identity = None
    if identity is None:
        raise ConfigError(
            f"'{label}': run.json has no identity, so it is not known what the run is named by."
        )
    return flat(identity)
