"""Write a note about runs, or label them: `note RUN 'of the paper'`; without these, print it.

They are part of no id. `list note=... label=paper` filters by them, `show` and `report` show them.
"""

import argparse
from collections.abc import Sequence

from launcher.errors import ConfigError
from launcher.rundir.note import Note
from launcher.runs.find import RUN_HELP
from launcher.runs.rerun import select_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=f"{RUN_HELP}; or a filter: model=mlp")
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the note; '' removes it")
    parser.add_argument("--label", action="append", default=[], help="add it; may be repeated")
    parser.add_argument("--unlabel", action="append", default=[], help="remove it")


def run(arguments: argparse.Namespace) -> int:
    for label in (*arguments.label, *arguments.unlabel):
        if not label or not label.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ConfigError(f"--label '{label}': should be letters, digits and . _ -.")
    for chosen in select_runs([arguments.run], arguments.outputs):
        note = chosen.written
        labels = changed(note.labels, arguments.label, arguments.unlabel)
        new = Note(note.text if arguments.text is None else arguments.text, labels)
        if new != note:
            with chosen.folder.being_written():
                new.write(chosen.folder.path)
        marks = "".join(f" [{label}]" for label in labels)
        print(f"{chosen.label}:{marks} {new.text or '-'}")
    return 0


def changed(labels: Sequence[str], added: Sequence[str], removed: Sequence[str]) -> tuple[str, ...]:
    """The labels with some more and some less, each once."""
    return tuple(label for label in dict.fromkeys((*labels, *added)) if label not in removed)
