"""Disk space that files take, and amounts as people write them."""

import os
import re

UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)


def folder_size(folder: str | os.PathLike[str]) -> int:
    """Count the bytes below a folder, which may be a link or gone; removed files do not count."""
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
    """Parse `2TB`, `1.5 TiB`, `500G` or `1000`; kB is 1000, KiB 1024. Otherwise return None."""
    match = AMOUNT.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        return None
    return float(match[1]) * float((1024 if match[3] else 1000) ** UNITS[match[2].lower()])
