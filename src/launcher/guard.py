"""The command `python -m launcher.guard`, and the same comparison for a test of one's own."""

import inspect
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import REJECTED, ConfigError
from launcher.proof.guard import main

if TYPE_CHECKING:
    from launcher.train.trainer import BaseTrainer


@dataclass(frozen=True)
class Compared:
    """The outcome of `compare`.

    Args:
        is_identical: both codes train bitwise identically.
        text: what was compared, or the first difference.
    """

    is_identical: bool
    text: str


def compare(
    make_trainer: "Callable[[], BaseTrainer]", steps: int = 20, against: str | None = None
) -> Compared:
    """Train a trainer with the code here and with another commit's, and compare every bit.

    In a test: `assert (found := guard.compare(make_trainer)).is_identical, found.text`.

    Args:
        make_trainer: a function at the top of a module, which makes a trainer. It is found by its
            file and name in the other code too.
        steps: optimizer steps to train.
        against: the other commit. Default None: the last one in common with the default branch.
    Raises:
        ConfigError: there is no such function or commit, or a side cannot be trained.
    """
    from launcher.proof import commits
    from launcher.proof.code_copy import copy_commit, working_tree
    from launcher.proof.side import Preset
    from launcher.proof.two_codes import IDENTICAL, compare_codes, judge_all

    function: Any = make_trainer
    here = working_tree()
    if "." in function.__qualname__:
        raise ConfigError(f"{function.__qualname__}: should be a function at the top of a module.")
    file = Path(inspect.getfile(function)).resolve()
    if not file.is_relative_to(here.root):
        raise ConfigError(f"{function.__qualname__}: {file} is not in {here.root}.")
    base = commits.base_or(here.root, against, "against")
    name = function.__qualname__
    preset = Preset(name, (), steps, function=(str(file.relative_to(here.root)), name))
    with tempfile.TemporaryDirectory(prefix="launcher-guard-") as folder:
        old = copy_commit(here, base, Path(folder) / "base")
        root = Path(folder)
        (verdict,) = judge_all(lambda each: compare_codes(old, here, each, root), [preset])
    if verdict.code == REJECTED:
        raise ConfigError(f"{name} {verdict.text}")
    return Compared(verdict.code == IDENTICAL, verdict.text)


if __name__ == "__main__":
    sys.exit(main())
