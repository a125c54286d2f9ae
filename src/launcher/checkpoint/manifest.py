"""The manifest: written last, so that its presence and agreement with the files is what makes a folder a checkpoint."""

import json
import os
import re
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
            files = [FileEntry(**entry) for entry in data.pop("files")]
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


def _digest(data: dict[str, Any]) -> str:
    """Over the content without this digest: a flipped bit in a file's size or in the step must show as well."""
    return xxhash.xxh3_128_hexdigest(json.dumps(data, sort_keys=True).encode())


def verify(folder: Path, hashes: bool = True) -> Manifest:
    """Compare a folder with its manifest; files side by side, since hashing is faster than one disk queue.

    Args:
        hashes: False compares sizes alone.
    Raises:
        CorruptCheckpoint: the first file that is missing or differs.
        OSError: the folder cannot be read; that says nothing about its content.
    """
    manifest = Manifest.read(folder)
    if (named := re.match(r"step-(\d+)$", folder.name)) and int(named.group(1)) != manifest.step:
        raise CorruptCheckpoint(f"{folder.name}: {NAME} is that of step {manifest.step}")
    for entry in manifest.files:
        if Path(entry.name).is_absolute() or ".." in Path(entry.name).parts:
            raise CorruptCheckpoint(f"{folder.name}: {entry.name} leads out of the folder")
        try:
            size = os.stat(folder / entry.name).st_size
        except FileNotFoundError:
            raise CorruptCheckpoint(f"{folder.name}: {entry.name} is missing") from None
        if size != entry.size:
            raise CorruptCheckpoint(f"{folder.name}: {entry.name} has {size} bytes, should have {entry.size}")
    if hashes:
        with ThreadPoolExecutor(max_workers=4) as pool:
            for entry, found in zip(
                manifest.files, pool.map(lambda e: hash_file(folder / e.name, e.name), manifest.files), strict=True
            ):
                if found.xxh3 != entry.xxh3:
                    raise CorruptCheckpoint(f"{folder.name}: {entry.name} has changed since it was written (checksum)")
    return manifest
