"""What follows from the end of a trial's process: a decision, and a line that reports it."""

import math
from collections.abc import Callable, Sequence

from launcher.run.holder import HELD
from launcher.runs.format import number as short
from launcher.sweepers.local import CANCELLED, Runner
from launcher.sweepers.settings import Settings
from launcher.sweepers.trials import Journal, Trial, best_of, described


class Endings:
    """
    Args:
        say: prints a line.
    """

    def __init__(self, journal: Journal, settings: Settings, runner: Runner, say: Callable[[str], None]):
        self.journal, self.settings, self.runner, self.say = journal, settings, runner, say

    def settle(self, trial: Trial, code: int, trials: Sequence[Trial]) -> None:
        """Record and report the end of a trial's process.

        Args:
            code: the exit code of the process, or `CANCELLED`.
            trials: all of the study.
        """
        status = trial.status(self.settings)
        if status == "completed":
            best = ", the best so far" if trial in best_of(trials, self.settings) else ""
            self.say(f"trial {trial.number}: completed, {described(trial, self.settings)}{best}")
        elif status == "pruned":
            self.say(f"trial {trial.number}: pruned at step {trial.pruned}")
        elif status == "paused":
            value = trial.value_at(trial.target or 0, self.settings)
            self.say(f"trial {trial.number}: paused at step {trial.step}, {self.settings.objectives[0]} {short(value)}")
            if value is None or not math.isfinite(value):
                self.journal.decide(trial, failures=self.settings.max_failures + 1)
        elif status == "failed":
            self.say(f"trial {trial.number}: failed: {described(trial, self.settings)}")
        elif code == CANCELLED:
            self.journal.decide(trial, pruned=trial.step, cancelled=True)
            self.say(f"trial {trial.number}: was cancelled at step {trial.step}; it counts as pruned")
        elif code > 128:
            self.say(f"trial {trial.number}: was stopped by a signal at step {trial.step}")
        elif code == 2:
            refusal = self.runner.why(trial.number, code)
            if HELD not in refusal:  # else it is started again once the other process has ended
                self.journal.decide(trial, refusal=refusal)
                self.say(f"trial {trial.number}: is invalid: {refusal}")
        elif trial.state != "paused":  # else it paused at an earlier rung, and is started again
            self.journal.decide(trial, failures=trial.failures + 1)
            again = "" if trial.status(self.settings) == "failed" else "; it is started again"
            self.say(f"trial {trial.number}: failed: {self._why(trial, code)}{again}")

    def _why(self, trial: Trial, code: int) -> str:
        if code >= 0 and trial.reason and trial.state == "failed":
            return trial.reason.strip().partition("\n")[0]
        return self.runner.why(trial.number, code)
