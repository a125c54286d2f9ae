"""The newest images and histograms of runs, for the report: images are part of the file."""

import base64
import mimetypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.rundir.history import read_rows
from launcher.runs.stored_run import StoredRun

MAX_RUNS = 24
MAX_IMAGE_BYTES, MAX_TOTAL_BYTES = 1 << 20, 16 << 20
"""Bytes of an image, and of all images."""


def media_of(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Return by key the newest image or histogram of each run, and how many were too large."""
    items: dict[str, list[dict[str, Any]]] = {}
    left_out, total = 0, 0
    for run in runs[:MAX_RUNS]:
        newest: dict[tuple[str, str], dict[str, Any]] = {}
        for row in read_rows(run.folder.path / "media.jsonl"):
            if row.get("kind") in ("image", "histogram") and isinstance(row.get("key"), str):
                newest[row["kind"], row["key"]] = row
        for (medium, key), row in newest.items():
            content = _histogram(row) if medium == "histogram" else _image(run, row)
            size = len(content.get("image", "")) if content is not None else 0
            if content is None or total + size > MAX_TOTAL_BYTES:
                left_out += 1
                continue
            total += size
            item = {"run": run.label, "step": row.get("step"), **content}
            items.setdefault(f"{key} ({medium})", []).append(item)
    return {"keys": items, "left_out": left_out}


def _histogram(row: dict[str, object]) -> dict[str, Any] | None:
    counts, edges = row.get("counts"), row.get("edges")
    is_one = isinstance(counts, list) and isinstance(edges, list) and len(edges) == len(counts) + 1
    return {"counts": counts, "edges": edges} if is_one else None


def _image(run: StoredRun, row: dict[str, Any]) -> dict[str, Any] | None:
    """Return a data URL, or None if it is gone, too large, outside, or unsafe on a page."""
    path = run.folder.path / str(row.get("path"))
    mime = mimetypes.guess_type(path.name)[0] or ""
    try:
        # `Path.resolve` raises a RuntimeError for a link to itself.
        is_inside = Path(os.path.realpath(path)).is_relative_to(run.folder.path.resolve())
        if not is_inside or mime not in ("image/png", "image/jpeg", "image/webp", "image/gif"):
            return None
        if path.stat().st_size > MAX_IMAGE_BYTES:
            return None
        text = base64.b64encode(path.read_bytes()).decode()
    except OSError:
        return None
    return {"image": f"data:{mime};base64,{text}"}
