"""Logged names that a misspelled metric may mean."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

SYNONYMS = {
    "valid": "val", "validation": "val", "eval": "val", "evaluation": "val", "dev": "val",
    "training": "train", "acc": "accuracy",
}  # fmt: skip


def meant(metric: str, logged: Iterable[str]) -> list[str]:
    """Return the names that may be meant by a metric that has not been logged.

    There are none if the metric may still come. It cannot come if its group (`val`) has logged
    its loss without it, or if it is another spelling of a logged name (`val_loss` for
    `val/loss`).
    """
    names = sorted(logged)
    group = metric.partition("/")[0]
    groups = {name.partition("/")[0] for name in names}
    matches = _of_group(group, names)
    if group not in groups:
        wanted = _words(metric)
        matches = [name for name in names if _words(name)[-len(wanted) :] == wanted]
    if group not in groups and not matches:
        similar = get_close_matches(group, groups - {group}, n=1)
        matches = _of_group(similar[0], names) if similar else []
    return matches if group not in groups or any(name.endswith("/loss") for name in matches) else []


def _of_group(group: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.partition("/")[0] == group]


def _words(name: str) -> list[str]:
    parts = re.findall(r"[a-z]+|\d+", name.lower())
    return [SYNONYMS.get(word, word) for word in parts]
