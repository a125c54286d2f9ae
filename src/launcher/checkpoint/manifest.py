"""The manifest. It is written last: without a matching one, a folder is not a checkpoint."""

import json
import os
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import xxhash

from launcher.checkpoint.durable_files import FileEntry, hash_file, write_json
from launcher.errors import ConfigError
from launcher.process.files import read_file

NAME = "manifest.json"
VERSION = 1
"""Number of the format of a checkpoint. It changes with the fields of `Manifest` and `FileEntry`,
and with the other files of a checkpoint."""


class CorruptCheckpoint(Exception):
    """A file differs from what was written. `name` is of a checkpoint or file."""

    def __init__(self, name: str, problem: str = ""):
        super().__init__(f"{name}: {problem}" if problem else name)
        self.problem = problem or name


class UnsupportedCheckpoint(ConfigError):
    """The checkpoint is whole, and another version of Launcher wrote it. It is not set aside."""

    def __init__(self, folder: Path, difference: str):
        self.problem = f"written by another version of Launcher ({difference})"
        super().__init__(f"{folder}: is {self.problem}; use that version. Nothing was renamed.")


@dataclass(frozen=True)
class Manifest:
    step: int
    world_size: int
    strategy: str
    checkpoint_format: str
    samples: int | None = None
    run: str | None = None
    """`<name>/<id>` of the run that wrote it, or None for a program without a workspace."""
    files: list[FileEntry] = field(default_factory=list)
    format_version: int = VERSION

    def write(self, folder: Path) -> None:
        data = asdict(self)
        for entry in data["files"]:
            if not entry["pieces"]:
                del entry["pieces"]
        write_json(folder / NAME, {**data, "xxh3": _digest(data)})

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of a folder.

        Raises:
            CorruptCheckpoint: it is missing, or differs from what was written.
            UnsupportedCheckpoint: another version of Launcher wrote it.
            OSError: it cannot be read, so its content is not known.
        """
        try:
            content = read_file(folder / NAME, follow=True)
        except FileNotFoundError:
            raise CorruptCheckpoint(folder.name, f"{NAME} is missing") from None
        except IsADirectoryError:
            raise CorruptCheckpoint(folder.name, f"{NAME} is a folder") from None
        try:
            return _parse(folder, content)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptCheckpoint(folder.name, f"{NAME} cannot be read ({error})") from None


def _parse(folder: Path, content: bytes) -> Manifest:
    data = json.loads(content)
    # The rule of the checksum is the same in every format, so it tells damage from another version.
    if data.pop("xxh3") != _digest(data):
        raise ValueError("its checksum does not match")
    try:
        difference = _difference(data)
        if difference:
            raise UnsupportedCheckpoint(folder, difference)
        files = [_entry(**entry) for entry in data.pop("files")]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnsupportedCheckpoint(folder, str(error)) from None
    outside = [e.name for e in files if Path(e.name).is_absolute() or ".." in Path(e.name).parts]
    if outside:
        raise ValueError(f"{outside[0]} is outside the folder")
    return Manifest(files=files, **data)


def _difference(data: dict[str, Any]) -> str:
    """Return how the format of a whole manifest differs from this version's, or an empty text."""
    version = data.get("format_version")
    if version != VERSION:
        return f"format_version {version}, and this one reads {VERSION}"
    names = {each.name for each in fields(Manifest)}
    texts = {"has": data.keys() - names, "lacks": names - data.keys()}
    found = [f"it {verb} {', '.join(sorted(keys))}" for verb, keys in texts.items() if keys]
    return " and ".join(found)


def _entry(name: str, size: int, xxh3: str, pieces: Any = ()) -> FileEntry:
    return FileEntry(name, size, xxh3, tuple((length, checksum) for length, checksum in pieces))


def _digest(data: dict[str, Any]) -> str:
    """Return a checksum of all other fields, since their bits may flip as well."""
    return xxhash.xxh3_128_hexdigest(json.dumps(data, sort_keys=True).encode())


def verify(folder: Path, hashes: bool | Callable[[FileEntry], bool] = True) -> Manifest:
    """Compare a folder with its manifest.

    Args:
        folder: the folder of a checkpoint.
        hashes: whether to read the files, or which of them. Only the size of the others is
            compared.
    Raises:
        CorruptCheckpoint: a file is missing or differs.
        UnsupportedCheckpoint: another version of Launcher wrote it.
        OSError: the folder cannot be read, so its content is not known.
    """
    manifest = Manifest.read(folder)
    wrong = issues(folder, manifest, hashes)
    if wrong:
        raise CorruptCheckpoint(folder.name, "; ".join(wrong))
    return manifest


def is_small(entry: FileEntry) -> bool:
    """Return whether `verify` reads a file; shards are verified as their tensors are loaded."""
    return not entry.name.startswith("shard-")


def issues(
    folder: Path, manifest: Manifest, hashes: bool | Callable[[FileEntry], bool] = True
) -> list[str]:
    """Return a message for each damaged file; see `verify`."""
    if (named := re.match(r"(?:corrupt-)?step-(\d+)", folder.name)) and int(
        named.group(1)
    ) != manifest.step:
        return [f"{NAME} belongs to step {manifest.step}"]
    wrong = []
    to_read = []
    for entry in manifest.files:
        try:
            status = os.stat(folder / entry.name)
        except (FileNotFoundError, NotADirectoryError):
            wrong.append(f"{entry.name} is missing")
            continue
        if not stat.S_ISREG(status.st_mode):
            wrong.append(f"{entry.name} is not a file")
        elif status.st_size != entry.size:
            wrong.append(f"{entry.name} has {status.st_size} bytes, should have {entry.size}")
        elif hashes(entry) if callable(hashes) else hashes:
            to_read.append(entry)
    # Hashing is faster than one disk queue.
    with ThreadPoolExecutor(max_workers=4) as pool:
        entries = pool.map(
            lambda entry: hash_file(folder / entry.name, entry.name, entry.pieces), to_read
        )
        wrong += [
            checksum_problem(entry.name)
            for entry, now in zip(to_read, entries, strict=True)
            if now != entry
        ]
    return wrong


def checksum_problem(name: str) -> str:
    return f"{name} has changed since it was written (checksum)"
