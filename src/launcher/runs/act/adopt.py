"""Make a run the run of a configuration: from now on, that command resumes it."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from launcher.config.compose.composer import command
from launcher.config.identity.difference import columns, diff
from launcher.config.identity.record_entry import read_identity
from launcher.config.options import own_folder
from launcher.config.run_config import RunConfig, check
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser, path_argument
from launcher.rundir.lock import RunLock
from launcher.rundir.record import RunRecord
from launcher.runs.act.repeat_command import key_of, outputs_of, quote
from launcher.runs.find_runs import RUN_HELP, find_run
from launcher.runs.look.compare import comparison_table, identity_of
from launcher.runs.stored_run import StoredRun

OUTPUTS = "paths.outputs"


def add_arguments(parser: Parser) -> None:
    parser.argument("run", "RUN", RUN_HELP)
    parser.argument(
        "overrides",
        "OVERRIDE",
        "the command line, after --: model=mlp seed=1",
        nargs="*",
        default=[],
    )
    parser.argument(
        "--config-dir", "DIR", "the folder of the command's own options", type=path_argument
    )


def run(arguments: argparse.Namespace) -> int:
    run = find_run(arguments.run, arguments.outputs)
    before = identity_of(run)
    config = compose_adopted(run, arguments.overrides, arguments.config_dir)
    entry = read_identity(config.plain["run"])
    # The configuration is valid.
    assert entry is not None
    rows = columns(diff(before, entry[1]))
    if rows:
        comparison_table("identity", rows, ["before", "now"]).print()
    with RunLock(run.folder), run.folder.explain_write_errors():
        RunRecord(run.folder).name_by(entry[1], entry[0])
    print(f"{run.label} is the run of this configuration: the same command resumes it.")
    return 0


def compose_adopted(run: StoredRun, overrides: Sequence[str], config_dir: Path | None) -> RunConfig:
    """Return the configuration of a command line, which must have no other run."""
    own = run.folder.path.resolve()
    if OUTPUTS not in map(key_of, overrides):
        overrides = [*overrides, f"{OUTPUTS}={quote(str(outputs_of(run.folder.path, run.name)))}"]
    with command(overrides, config_dir or own_folder()) as words:
        config = check(words.config())
        folder = config.folder.path
        if folder.parent.resolve() != own.parent:
            raise ConfigError(
                f"run.name={config.run.name}: '{run.label}' has another name, by which it is looked"
                f" up; add run.name={run.name}."
            )
        if folder.resolve() == own:
            return config
        continued = words.run().continued
    taken = None if continued is None else continued.folder.path
    if folder.exists():
        taken = folder
    if taken is not None and taken.resolve() != own:
        raise ConfigError(
            f"'{run.label}': {taken} is the run of this configuration already; move it away, or add"
            " run.tag=<word>."
        )
    return config
