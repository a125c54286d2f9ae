"""A run as its folder describes it, for everyone who does not write its record."""

import os
from dataclasses import dataclass
from typing import Any, Self

from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder, is_copy, run_name
from launcher.rundir.record_format import (
    IDENTITY_VERSION,
    AttemptData,
    RecordData,
    UnsupportedRecord,
    read_record,
)


@dataclass
class RunOnDisk:
    path: str
    record: RecordData
    """run.json; empty if there is none, or if it cannot be read."""
    is_unsupported: bool = False
    """Another version of Launcher wrote run.json."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        path = os.fspath(path)
        try:
            return cls(path, read_record(f"{path}/run.json"))
        except UnsupportedRecord:
            return cls(path, {}, is_unsupported=True)
        except (OSError, ValueError):
            return cls(path, {})

    @classmethod
    def load(cls, folder: RunFolder) -> Self | None:
        """Read a run that may be trained, or return None if there is none.

        Raises:
            OSError, ConfigError: run.json cannot be read, or is of another version of Launcher.
        """
        try:
            return cls(str(folder.path), load_record(folder)[0])
        except FileNotFoundError:
            return None

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)

    @property
    def id(self) -> str:
        return str(self.record.get("id") or self.folder.path.name)

    @property
    def name(self) -> str:
        return str(self.record.get("name") or self.folder.path.parent.name)

    @property
    def label(self) -> str:
        return f"{self.name}/{self.id}"

    @property
    def names(self) -> list[str]:
        """The names of a run: by its folder, and by its record if the folder was renamed."""
        return list(dict.fromkeys([run_name(self.folder.path), self.label]))

    @property
    def recorded_state(self) -> str | None:
        return self.record.get("state")

    @property
    def is_copied(self) -> bool:
        """Return whether its folder is a copy of another one that still exists."""
        return is_copy(self.folder.path, self.record.get("folder"))

    @property
    def step(self) -> int:
        return self.record.get("step", 0)

    @property
    def max_steps(self) -> int:
        """The last step of the newest attempt, or 0 if it is not known."""
        return self.record.get("max_steps") or 0

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration by dotted keys: {"optimizer.lr": 0.001}."""
        return self.record.get("config", {})

    @property
    def identity(self) -> dict[str, Any] | None:
        """The identity that names the run, or None if it has none of this version."""
        is_current = self.record.get("identity_version") == IDENTITY_VERSION
        return self.record.get("identity") if is_current else None

    @property
    def attempts(self) -> list[AttemptData]:
        return self.record.get("attempts", [])

    @property
    def attempt(self) -> AttemptData:
        """The newest attempt; empty if there was none."""
        return self.attempts[-1] if self.attempts else {}

    @property
    def started(self) -> str:
        """Start of the first attempt as written in run.json; empty if there was none."""
        if self.attempts:
            return str(self.attempts[0].get("started") or "")
        return ""


def load_record(folder: RunFolder) -> tuple[RecordData, str | None]:
    """Return the record of a run that is to be trained, and why it is damaged and empty, or None.

    Raises:
        FileNotFoundError: there is none.
        ConfigError: another version of Launcher has written it.
    """
    path = folder.record_path
    try:
        return read_record(path), None
    except UnsupportedRecord as error:
        raise ConfigError(f"{path}: is {error}; use that version, or {folder.another}.") from error
    except IsADirectoryError:
        return {}, "it is a folder"
    except ValueError as error:
        return {}, str(error)
