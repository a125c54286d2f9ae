"""Notes and labels that `show` writes; they are part of no id."""

import argparse
import re
from collections.abc import Sequence

from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser
from launcher.rundir.user_note import UserNote
from launcher.runs.stored_run import StoredRun


def add_note_arguments(parser: Parser) -> None:
    parser.argument("--note", "TEXT", "write a note about it; '' removes it")
    parser.add_argument("--label", action="append", default=[], help="add a label; may be repeated")
    parser.argument("--unlabel", "LABEL", "remove a label", action="append", default=[])


def write_notes(runs: Sequence[StoredRun], arguments: argparse.Namespace) -> None:
    for label in (*arguments.label, *arguments.unlabel):
        if re.fullmatch(r"[\w.-]+", label) is None:
            raise ConfigError(f"--label '{label}': should be letters, digits and . _ -.")
    for run in runs:
        text = run.written.text if arguments.note is None else arguments.note
        labels = dict.fromkeys((*run.written.labels, *arguments.label))
        new = UserNote(text, tuple(label for label in labels if label not in arguments.unlabel))
        if new != run.written:
            with run.folder.explain_write_errors():
                new.write(run.folder.path)
        marks = "".join(f" [{label}]" for label in new.labels)
        print(f"{run.label}:{marks} {new.text or '-'}")
