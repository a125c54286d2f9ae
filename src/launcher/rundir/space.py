"""Disk space that files take, and amounts as people write them."""

import os
import re
from pathlib import Path

UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)


def folder_size(folder: str | os.PathLike[str]) -> int:
    """Count the bytes in all files below a folder, which may be a link.

    Files that are removed meanwhile do not count.

    Returns:
        0 for a folder that does not exist.
    """
    total = 0
    for folder_path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder_path, name)).st_size
            except FileNotFoundError:
                continue
    return total


def size(bytes: float) -> str:
    """Format bytes in the unit that fits: 512 B, 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if bytes < 1000:
            return f"{bytes:.0f} {unit}" if unit == "B" else f"{bytes:.1f} {unit}"
        bytes /= 1000
    return f"{bytes:.1f} TB"


def parse_size(text: str) -> float | None:
    """Parse an amount such as `2TB`, `1.5 TiB`, `500G` or `1000`.

    Args:
        text: a number and a unit; kB, MB, GB, TB and PB are powers of 1000, KiB and so on powers of
            1024.

    Returns:
        None if it is not an amount.
    """
    match = AMOUNT.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        return None
    return float(match[1]) * float((1024 if match[3] else 1000) ** UNITS[match[2].lower()])


def owner(path: str | os.PathLike[str]) -> str:
    """Return the name of a file's owner, or the number if the machine knows no name."""
    try:
        return Path(path).owner()
    except (KeyError, NotImplementedError):
        return str(os.stat(path).st_uid)


def over_quota(outputs: Path, quota: str) -> str | None:
    """Return a warning if the files below a folder take more than `paths.quota` allows, else None.

    Args:
        outputs: the folder.
        quota: see `parse_size`.
    """
    limit, used = parse_size(quota), folder_size(outputs)
    if limit is None or used <= limit:
        return None
    return (
        f"paths.quota={quota}: {outputs} takes {size(used)}; python -m launcher.runs clean --older"
        " 30d prints which checkpoints could be deleted."
    )
