"""Documents as tokens on disk, written once and memory-mapped by every rank."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from launcher.data.encoding import Document
from launcher.data.file_patterns import is_held_out
from launcher.data.write_tokens import TokenWriter
from launcher.process.files import fsync_file, fsync_folder, replace_file

SPLITS = ("train", "val")


class TokenStore:
    """The documents of one part: `tokens` [N], and the position `ends` [D] after each document.

    `targets` [N] (0 or 1) and `labels` [D] may be None.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.meta: dict[str, Any] = json.loads((folder.parent / "meta.json").read_text())
        self.fingerprint = str(self.meta["fingerprints"][folder.name])
        self.tokens, self.ends = _map_file(folder / "tokens.npy"), _map_file(folder / "ends.npy")
        optional = (folder / "targets.npy", folder / "labels.npy")
        self.targets, self.labels = (
            _map_file(path) if path.exists() else None for path in optional
        )


def write_store(
    folder: Path, documents: Iterable[Document], val_fraction: float, meta: dict[str, Any]
) -> None:
    """Write `folder`/train and `folder`/val; every (1 / val_fraction)-th document is held out.

    `folder` appears only when it is complete. If another process was faster, its folder is kept.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with ExitStack() as stack:
            dtype = np.uint16 if meta["vocab_size"] <= 2**16 else np.uint32
            parts = [_Part(temporary / name, dtype, stack) for name in SPLITS]
            for number, document in enumerate(documents):
                parts[is_held_out(number, val_fraction)].append(document)
        fingerprints = {part.folder.name: part.finish() for part in parts}
        counts = {part.folder.name: len(part.ends) for part in parts}
        meta = {**meta, "documents": counts, "fingerprints": fingerprints}
        replace_file(temporary / "meta.json", json.dumps(meta).encode())
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.is_dir():
                raise
        fsync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Part:
    """The files of one part, whose writers end with the stack."""

    def __init__(self, folder: Path, dtype: type[np.unsignedinteger[Any]], stack: ExitStack):
        folder.mkdir()
        self.folder = folder
        self.stack = stack
        self.ends, self.labels = list[int](), list[int]()
        self.tokens = stack.enter_context(TokenWriter(folder / "tokens.npy", dtype))
        self.targets: TokenWriter | None = None
        self.digest = xxhash.xxh3_64()

    def append(self, document: Document) -> None:
        self.tokens.append(document.ids)
        self.digest.update(document.ids.tobytes())
        self.ends.append(self.tokens.count)
        if document.is_target is not None:
            if self.targets is None:
                writer = TokenWriter(self.folder / "targets.npy", np.uint8)
                self.targets = self.stack.enter_context(writer)
            self.targets.append(document.is_target.astype(np.uint8))
            self.digest.update(document.is_target.tobytes())
        if document.label is not None:
            self.labels.append(document.label)

    def finish(self) -> str:
        """Write the other files, and return what identifies the documents."""
        np.save(self.folder / "ends.npy", np.array(self.ends, dtype=np.int64))
        if self.labels:
            np.save(self.folder / "labels.npy", np.array(self.labels, dtype=np.int64))
        for file in self.folder.iterdir():
            fsync_file(file)
        self.digest.update(np.array([*self.ends, *self.labels], dtype=np.int64).tobytes())
        digest = self.digest.hexdigest()
        return f"{len(self.ends)} documents of {self.tokens.count} tokens, xxh3 {digest}"


def _map_file(path: Path) -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array.view(np.ndarray)


def make_once(
    path: Path, make: Callable[[], None], on_main: Callable[[Callable[[], None]], object]
) -> None:
    """Let rank 0 make `path` if it is missing; a node that does not see it makes its own."""
    on_main(lambda: None if path.exists() else make())
    if not path.exists():
        make()
