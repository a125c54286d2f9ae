"""A tracker that keeps its lines in a file of the run's folder; its position is that file's."""

import json
import os
import time
from pathlib import Path

from launcher.trackers.base import Line, Tracker


class FileTracker(Tracker):
    """
    Args:
        fails_while: `write` raises while this file exists.
        hangs_while: `write` does not return while this file exists.
        needs: a library.
        name: of its files.
    """

    def __init__(
        self,
        fails_while: str | None = None,
        hangs_while: str | None = None,
        needs: str = "json",
        name: str = "tracked",
    ):
        self.fails_while, self.hangs_while = fails_while, hangs_while
        self.library, self.extra, self.name = needs, "files", name

    @property
    def path(self) -> Path:
        return self.run.folder.path / f"{self.name}.jsonl"

    def open(self) -> int:
        return max((line["step"] for line in self.lines()), default=-1)

    def write(self, lines: list[Line]) -> None:
        while self.hangs_while and os.path.exists(self.hangs_while):
            time.sleep(0.01)
        if self.fails_while and os.path.exists(self.fails_while):
            raise ConnectionError("the server is down\nand says so at length")
        with open(self.path, "a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))

    def close(self, state: str) -> None:
        (self.run.folder.path / f"{self.name}.state").write_text(state)

    def lines(self) -> list[Line]:
        return (
            [json.loads(line) for line in self.path.read_text().splitlines()]
            if self.path.exists()
            else []
        )
