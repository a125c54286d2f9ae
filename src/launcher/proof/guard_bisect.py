"""The first commit that trains a preset otherwise."""

import sys
from pathlib import Path

from launcher.errors import REJECTED, ConfigError
from launcher.proof import commits
from launcher.proof.code_copy import Code, copy_commit
from launcher.proof.first_difference import first_difference
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
        self.here = here
        self.root = root
        self.good, self.bad = (
            commits.resolve(here.root, name, "--bisect") for name in [*names, "HEAD"][:2]
        )
        if len(names) > 2 or not commits.is_ancestor(here.root, self.good, self.bad):
            raise ConfigError(
                f"--bisect {' '.join(names)}: takes a good commit, and perhaps a later bad one;"
                " overrides come before it."
            )

    def find(self, preset: Preset) -> Verdict:
        """Find the first commit that trains a preset otherwise than the good one."""
        sides: dict[str, Side] = {}
        for commit in (self.good, self.bad):
            if self._train(preset, commit, sides) is None:
                text = f"{self._name(commit)} does not train it; name another commit."
                return Verdict(preset, text, REJECTED)
        expected = sides[self.good]
        if first_difference(expected, sides[self.bad]) is None:
            text = f"{self._name(self.bad)} trains as {self._name(self.good)}."
            return Verdict(preset, text, IDENTICAL)

        def is_equal(commit: str) -> bool | None:
            side = self._train(preset, commit, sides)
            if side is None:
                return None
            found = first_difference(expected, side) is None
            reached["good" if found else "bad"] = commit
            self._report("equal" if found else "differs", commit)
            return found

        reached = {"good": self.good, "bad": self.bad}
        try:
            first, untrained = commits.bisect(self.here.root, self.good, self.bad, is_equal)
        except KeyboardInterrupt:
            rest = f"--bisect {reached['good'][:12]} {reached['bad'][:12]}"
            print(f"To go on: {rest}", file=sys.stderr, flush=True)
            raise
        if first is None:
            names = "; ".join(self._name(commit) for commit in untrained)
            return Verdict(preset, f"not found, since these do not train it: {names}.", REJECTED)
        # All commits before the first one train as the good one does.
        found = compare_sides(expected, sides[first], preset, self.root)
        text = f"first differs at {self._name(first)}"
        return Verdict(preset, text, found.code, details=[found.text, *found.details])

    def _name(self, commit: str) -> str:
        return commits.describe(self.here.root, commit)

    def _report(self, outcome: str, commit: str) -> None:
        print(f"{outcome:8}{self._name(commit)}", file=sys.stderr, flush=True)

    def _train(self, preset: Preset, commit: str, sides: dict[str, Side]) -> Side | None:
        """Add the training with a commit's code to `sides`; return None if it does not train."""
        try:
            copy = copy_commit(self.here, commit, new_folder(self.root) / "code")
            sides[commit] = train(copy, preset, new_folder(self.root))
        except NotTrained as error:
            self._report("skipped", commit)
            print(f"        {error}", file=sys.stderr, flush=True)
        return sides.get(commit)
