"""The note and the labels of a run: what people write about it, at its start or later."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.process.files import parse_json, read_file, replace_file

NAME = "note.json"


@dataclass(frozen=True)
class UserNote:
    text: str = ""
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: Path, settings: Mapping[str, object]) -> "UserNote":
        """Return what was written last: by `runs show --note`, or `run.note` and `run.labels`."""
        try:
            data = parse_json(read_file(folder / NAME))
            return cls(str(data["text"]), tuple(map(str, data["labels"])))
        except (OSError, ValueError, KeyError, TypeError):
            labels = settings.get("run.labels")
            text = settings.get("run.note")
            named = labels if isinstance(labels, Sequence) and not isinstance(labels, str) else ()
            return cls("" if text is None else str(text), tuple(map(str, named)))

    def write(self, folder: Path) -> None:
        data = {"text": self.text, "labels": list(self.labels)}
        replace_file(folder / NAME, json.dumps(data).encode())
