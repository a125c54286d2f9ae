"""Find the files that a pattern names, and divide them into training and held-out files."""

from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Any

from launcher.config.schema.checks import no_file
from launcher.errors import ConfigError
from launcher.process.files import expand


def find_files(key: str, patterns: str | Sequence[str]) -> list[Path]:
    """Find the files that paths or globs (`**` for any depth, `~` for home) name, sorted."""
    files: set[Path] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        path = expand(pattern)
        if path.is_dir():
            inside = path / "**" / "*.txt"
            raise ConfigError(
                f"{key}='{pattern}': is a folder; name the files in it, e.g. {key}='{inside}'."
            )
        named = [path] if path.is_file() else map(Path, glob(str(path), recursive=True))
        matches = [candidate for candidate in named if candidate.is_file()]
        if not matches:
            raise ConfigError(str(no_file(key, pattern)))
        files.update(match.absolute() for match in matches)
    if not files:
        raise ConfigError(
            f"{key}=[]: names no file; give a path or a glob, e.g. {key}='corpus/**/*.txt'."
        )
    return sorted(files)


def check_files(source: Any) -> None:
    """Find a source's new data, or else its training and held-out files.

    A model may be on another machine than its training data.
    """
    for name in ["predict"] if source.predict is not None else ["files", "val_files"]:
        patterns = getattr(source, name, None)
        if patterns is not None:
            find_files(f"data.{name}", patterns)


def is_held_out(number: int, fraction: float) -> bool:
    """Return whether an item is held out: every (1 / fraction)-th one is."""
    return int((number + 1) * fraction) > int(number * fraction)


def hold_out(files: Sequence[Path], fraction: float) -> tuple[list[Path], list[Path]]:
    """Divide sorted files; every (1 / fraction)-th is held out, at least one if fraction > 0."""
    chosen = {i for i in range(len(files)) if is_held_out(i, fraction)}
    if fraction and not chosen:
        chosen = {len(files) - 1}
    train = [file for i, file in enumerate(files) if i not in chosen]
    return train, [files[i] for i in sorted(chosen)]
