"""The manifest: written last, so that its presence and agreement with the files is what makes a folder a checkpoint."""

import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from launcher.checkpoint.files import FileEntry, hash_file, write_json

NAME = "manifest.json"
VERSION = 1


class CorruptCheckpoint(Exception):
    """A folder that is no whole checkpoint; the message names the file and what is wrong."""


@dataclass(frozen=True)
class Manifest:
    step: int
    world_size: int
    strategy: str
    checkpoint_format: str
    samples: int | None = None
    files: list[FileEntry] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    format_version: int = VERSION

    def write(self, folder: Path) -> None:
        data = asdict(self)
        for entry in data["files"]:
            if not entry["pieces"]:
                del entry["pieces"]
        write_json(folder / NAME, {**data, "xxh3": _digest(data)})

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """
        Raises:
            CorruptCheckpoint: there is none, it is not readable, or it is of a newer version.
        """
        try:
            data: dict[str, Any] = json.loads((folder / NAME).read_bytes())
            stated = data.pop("xxh3")
            if stated != _digest(data):
                raise ValueError("its own checksum does not fit")
            files = [_entry(**entry) for entry in data.pop("files")]
            if out := [e.name for e in files if Path(e.name).is_absolute() or ".." in Path(e.name).parts]:
                raise ValueError(f"{out[0]} leads out of the folder")
            manifest = cls(files=files, **data)
        except FileNotFoundError:
            raise CorruptCheckpoint(f"{folder.name}: {NAME} is missing") from None
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptCheckpoint(f"{folder.name}: {NAME} cannot be read ({error})") from None
        if manifest.format_version > VERSION:
            raise CorruptCheckpoint(
                f"{folder.name}: of format version {manifest.format_version}; this launcher reads up to {VERSION}"
            )
        return manifest


def _entry(name: str, size: int, xxh3: str, pieces: Any = ()) -> FileEntry:
    return FileEntry(name, size, xxh3, tuple((length, checksum) for length, checksum in pieces))


def _digest(data: dict[str, Any]) -> str:
    """Over the content without this digest: a flipped bit in a file's size or in the step must show as well."""
    return xxhash.xxh3_128_hexdigest(json.dumps(data, sort_keys=True).encode())


def verify(folder: Path, hashes: bool | Callable[[FileEntry], bool] = True) -> Manifest:
    """Compare a folder with its manifest.

    Args:
        hashes: whether to read the files, or which of them; of the others sizes alone are compared.
    Raises:
        CorruptCheckpoint: a file is missing or differs.
        OSError: the folder cannot be read; that says nothing about its content.
    """
    manifest = Manifest.read(folder)
    if wrong := faults(folder, manifest, hashes):
        raise CorruptCheckpoint(f"{folder.name}: {'; '.join(wrong)}")
    return manifest


def is_small(entry: FileEntry) -> bool:
    """Whether it is none of those whose tensors are checked as they are loaded, see `StoredCheckpoint`."""
    return not entry.name.startswith("shard-")


def faults(folder: Path, manifest: Manifest, hashes: bool | Callable[[FileEntry], bool] = True) -> list[str]:
    """What is wrong with a folder whose manifest can be read, a sentence for each file; see `verify`."""
    if (named := re.match(r"step-(\d+)$", folder.name)) and int(named.group(1)) != manifest.step:
        return [f"{NAME} is that of step {manifest.step}"]
    wrong, to_read = [], []
    for entry in manifest.files:
        try:
            size = os.stat(folder / entry.name).st_size
        except FileNotFoundError:
            wrong.append(f"{entry.name} is missing")
            continue
        if size != entry.size:
            wrong.append(f"{entry.name} has {size} bytes, should have {entry.size}")
        elif hashes(entry) if callable(hashes) else hashes:
            to_read.append(entry)
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashing is faster than one disk queue
        found = pool.map(lambda entry: hash_file(folder / entry.name, entry.name, entry.pieces), to_read)
        wrong += [changed(entry.name) for entry, now in zip(to_read, found, strict=True) if now != entry]
    return wrong


def changed(name: str) -> str:
    return f"{name} has changed since it was written (checksum)"
