"""The matrices that a run has logged, such as a confusion matrix."""

import json
from typing import Any

from launcher.rundir.folder import RunFolder


def newest_matrices(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """The last matrix of each key: its `step` and its `rows`.

    Lines that cannot be parsed have none.
    """
    newest: dict[str, dict[str, Any]] = {}
    try:
        with open(folder.path / "media.jsonl", "rb") as file:
            for line in file:
                # A file may have millions of other lines.
                if b'"kind": "matrix"' not in line:
                    continue
                try:
                    row = json.loads(line)
                    newest[str(row["key"])] = {"step": row["step"], "rows": row["rows"]}
                except (ValueError, LookupError, TypeError, RecursionError):
                    continue
    except OSError:
        pass
    return newest
