"""The first commit that trains a preset otherwise."""

import sys
from pathlib import Path

from launcher.errors import REJECTED, ConfigError
from launcher.proof import commits
from launcher.proof.code_copy import Code, copy_commit
from launcher.proof.side import NotTrained, Preset, Side, new_folder, train
from launcher.proof.two_codes import IDENTICAL, Verdict, compare_sides


class GuardBisect:
    """A bisection of the commits of the repository, which does not change it.

    Args:
        here: the working tree.
        names: the good commit, and perhaps the bad one, else HEAD.
        root: a folder for copies and trainings.
    """

    def __init__(self, here: Code, names: list[str], root: Path):
        self.here, self.root = here, root
        self.copies: dict[str, Code] = {}
        self.good = commits.resolve(here.root, names[0], "--bisect")
        self.bad = commits.resolve(here.root, [*names, "HEAD"][1], "--bisect")
        if not commits.is_ancestor(here.root, self.good, self.bad):
            raise ConfigError(
                f"--bisect: {self.good[:12]} is not a commit before {self.bad[:12]};"
                " name the good commit first."
            )

    def find(self, preset: Preset) -> Verdict:
        """Find the first commit that trains a preset otherwise than the good one."""
        expected = self._train(preset, self.good)
        if expected is None:
            text = f"{self._name(self.good)} does not train it; name another good commit."
            return Verdict(preset, text, REJECTED)
        others: dict[str, Side] = {}

        def is_equal(commit: str) -> bool | None:
            from launcher.proof.first_difference import compare  # late: torch

            side = self._train(preset, commit)
            if side is None:
                return None
            others[commit] = side
            found = compare(expected, side).difference is None
            self._report("equal" if found else "differs", commit)
            return found

        last = is_equal(self.bad)
        if last is None:
            text = f"{self._name(self.bad)} does not train it; name another bad commit."
            return Verdict(preset, text, REJECTED)
        if last:
            text = f"{self._name(self.bad)} trains as {self._name(self.good)}."
            return Verdict(preset, text, IDENTICAL)
        first, untrained = commits.bisect(self.here.root, self.good, self.bad, is_equal)
        if first is None:
            names = "; ".join(self._name(commit) for commit in untrained)
            return Verdict(preset, f"not found, since these do not train it: {names}.", REJECTED)
        # All commits before the first one train as the good one does.
        found = compare_sides(expected, others[first], preset, self.root)
        text = f"first differs at {self._name(first)}"
        return Verdict(preset, text, found.code, details=[found.text, *found.details])

    def _name(self, commit: str) -> str:
        return commits.describe(self.here.root, commit)

    def _copy(self, commit: str) -> Code:
        if commit not in self.copies:
            self.copies[commit] = copy_commit(self.here, commit, new_folder(self.root) / "code")
        return self.copies[commit]

    def _report(self, outcome: str, commit: str) -> None:
        print(f"{outcome:8}{self._name(commit)}", file=sys.stderr, flush=True)

    def _train(self, preset: Preset, commit: str) -> Side | None:
        """Return the training with a commit's code, or None if it does not train."""
        try:
            return train(self._copy(commit), preset, new_folder(self.root))
        except NotTrained as error:
            self._report("skipped", commit)
            print(f"        {error}", file=sys.stderr, flush=True)
            return None
