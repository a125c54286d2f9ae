"""The size of a folder, and amounts of bytes as text."""

import os


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
            if unit == "B":
                return f"{bytes:.0f} {unit}"
            return f"{bytes:.1f} {unit}"
        bytes /= 1000
    return f"{bytes:.1f} TB"
