"""The search: it makes trials, and starts, pauses, promotes and stops them, until the study has all its trials."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from launcher.errors import ConfigError
from launcher.run import signals
from launcher.run.folder import RunFolder
from launcher.run.holder import is_held
from launcher.sweepers import rungs as halving
from launcher.sweepers.asking import Asker, Compose
from launcher.sweepers.endings import Endings
from launcher.sweepers.local import Runner
from launcher.sweepers.samplers import size
from launcher.sweepers.settings import LIVE, Settings
from launcher.sweepers.space import Space, overrides_of
from launcher.sweepers.trials import Journal, Trial, described

LONGEST = 16
"""The time between two checks of the trials grows to at most this many times `poll`, if the checks take long."""


class Search:
    """
    Args:
        folder: the study's.
        outputs: the folder of all runs.
        fixed: overrides that all trials share.
        compose: see `Asker`.
        runner: trains the trials.
        rungs: the steps at which trials pause.
        say: prints a line.
        show: redraws the table of trials.
    """

    def __init__(
        self,
        folder: Path,
        outputs: Path,
        settings: Settings,
        space: Space,
        fixed: list[str],
        compose: Compose,
        runner: Runner,
        rungs: list[int],
        say: Callable[[str], None],
        show: Callable[["Search"], None] = lambda search: None,
    ):
        self.folder, self.outputs, self.settings, self.space = folder, outputs, settings, space
        self.compose, self.runner, self.rungs, self.poll = compose, runner, rungs, runner.poll
        self.say, self.show = say, show
        self.journal = Journal(folder / "trials.jsonl")
        self.asker = Asker(folder.name, settings, space, fixed, rungs, compose)
        self.study = self.asker.study
        self.endings = Endings(self.journal, settings, runner, say)
        self.trials: list[Trial] = []
        self.is_new = True
        self.judged: dict[int, int] = {}
        """The last step of each trial that the pruner has seen."""
        self.started = time.monotonic()
        self._most = min(settings.n_trials, size(settings, space))

    def load(self) -> None:
        """Read the trials of an earlier search."""
        self.trials = self.journal.read()
        self.is_new = not self.trials
        for trial in self.trials:
            trial.look(self.outputs, self.settings)
            self._follow_pruner(trial)

    def _follow_pruner(self, trial: Trial) -> None:
        """If the pruner has changed since, let a trial train to its end, or to a rung of the new pruner."""
        if trial.target is not None and trial.target not in self.rungs:
            self.journal.decide(trial, target=halving.next_rung(trial.target, self.rungs))
        if trial.pruned is not None and not trial.cancelled and self.settings.pruner == "none":
            self.journal.decide(trial, pruned=None)

    def forget_unless_begun(self) -> None:
        """Remove the file of trials if none of them has a run yet."""
        if self.is_new and not any(trial.run and (self.outputs / trial.run).exists() for trial in self.trials):
            self.journal.path.unlink(missing_ok=True)

    def run(self) -> None:
        """
        Raises:
            signals.Stop: a signal came; the trials have saved.
            ConfigError: no run logs the objective.
        """
        try:
            self._adopt()
            while True:
                began = time.monotonic()
                self._look()
                pause = self._pause(time.monotonic() - began)
                signals.check()
                while len(self.runner.running()) < self.settings.parallel and (trial := self._next()) is not None:
                    self._start(trial)
                self.runner.flush()
                self.show(self)
                if not self.runner.running() and not self._held_elsewhere():
                    return
                self._sleep(pause)
        finally:
            self.runner.close()

    def _adopt(self) -> None:
        """Take over the trials that an earlier search has left running."""
        runs: dict[str, int] = {}
        for trial in self.trials:
            if trial.status(self.settings) == "open":
                runs.setdefault(str(trial.run), trial.number)
        self.runner.adopt({number: run for run, number in runs.items()})

    def _pause(self, took: float) -> float:
        """Seconds until the next check of the trials: more if a check takes long, as with many lines of metrics."""
        return max(self.poll, min(9 * took, LONGEST * self.poll))

    def _sleep(self, seconds: float) -> None:
        """Sleep, or until a signal."""
        end = time.monotonic() + seconds
        while not signals.received() and (rest := end - time.monotonic()) > 0:
            time.sleep(min(rest, self.poll))

    # ------------------------------------------------------------------------------------------------- what is next
    def _next(self) -> Trial | None:
        """The trial that gets a free slot: an interrupted one, a promoted one, or a new one."""
        busy = self.runner.running()
        for trial in self.trials:
            is_idle = trial.number not in busy and not self._is_twin_of(trial, busy)
            if trial.status(self.settings) == "open" and is_idle and not self._is_held(trial):
                return trial
        if (promoted := halving.promotable(self.trials, self.rungs, self.settings)) is not None:
            target = halving.next_rung(promoted.target or 0, self.rungs)
            return self._promote(promoted, target, f"is among the best 1/{self.settings.eta} at step {promoted.target}")
        while self._asked() < self._most and not self._is_late():
            trial = self._ask()
            if trial.status(self.settings) == "open" and not self._is_twin_of(trial, busy):
                return trial
        if not busy and (best := halving.last_resort(self.trials, self.rungs, self.settings)) is not None:
            return self._promote(best, None, "is the best of the highest rung")
        return None

    def _asked(self) -> int:
        return sum(trial.origin != "known" for trial in self.trials)

    def _is_late(self) -> bool:
        return self.settings.timeout is not None and time.monotonic() - self.started > self.settings.timeout

    def _is_twin_of(self, trial: Trial, numbers: set[int]) -> bool:
        """Whether one of these trials has the same run."""
        return any(self.trials[number].run == trial.run for number in numbers)

    def _held_elsewhere(self) -> bool:
        """Whether another process works on an open trial, such as the child of a killed search."""
        return any(trial.status(self.settings) == "open" and self._is_held(trial) for trial in self.trials)

    def _is_held(self, trial: Trial) -> bool:
        return is_held(RunFolder(self.outputs / str(trial.run)))

    def _promote(self, trial: Trial, target: int | None, why: str) -> Trial:
        self.journal.decide(trial, target=target)
        self.say(f"trial {trial.number}: {why}, resumes")
        return trial

    def _ask(self) -> Trial:
        """A new trial, recorded before it is started."""
        trial = self.asker.ask(self.trials)
        self.journal.ask(trial)
        self.trials.append(trial)
        trial.look(self.outputs, self.settings)
        self._report_new(trial)
        return trial

    def _report_new(self, trial: Trial) -> None:
        text = f"trial {trial.number}: {' '.join(overrides_of(trial.params))}"
        twin = next((each for each in self.trials[:-1] if each.run == trial.run and trial.run is not None), None)
        status = trial.status(self.settings)
        if status == "invalid":
            self.say(f"{text}: is invalid: {trial.refusal}")
        elif twin is not None:
            trial.target, trial.pruned, trial.failures = twin.target, twin.pruned, twin.failures
            self.journal.decide(trial, target=twin.target, pruned=twin.pruned, failures=twin.failures)
            self.say(f"{text}: is trial {twin.number} again")
        elif status == "completed":
            self.say(f"{text}: run {trial.run} is completed already, {described(trial, self.settings)}")

    # ------------------------------------------------------------------------------------------------- what happens
    def _start(self, trial: Trial) -> None:
        job = self.compose(self.asker.overrides(trial.params), trial.number)
        if job.run != trial.run:
            raise ConfigError(
                f"{self.folder}: trial {trial.number} was run {trial.run} and would now be {job.run}: the "
                "configuration was changed while the study ran; undo that, or move the study's folder away."
            )
        config = {**job.plain, "trainer": {**job.plain["trainer"], "pause_at": trial.target}}
        self.runner.start(trial.number, config, job.hydra)
        how = self.runner.describe_start(trial.step)
        self.say(f"trial {trial.number}: {how}: {trial.run} {' '.join(overrides_of(trial.params))}")

    def _look(self) -> None:
        ended = self.runner.ended()
        running = self.runner.running()
        for number in sorted({*running, *ended}):
            self.trials[number].look(self.outputs, self.settings)
            if number in running:  # whatever run.json says: its process has not ended yet
                self.trials[number].state = "running"
            self._check_objectives(self.trials[number])
        for number, code in ended.items():
            self.endings.settle(self.trials[number], code, self.trials)
        for trial in self.trials:
            if trial.status(self.settings) == "open" and trial.number not in ended:
                if trial.number not in self.runner.running():
                    trial.look(self.outputs, self.settings)
                elif self.settings.pruner in LIVE:
                    self._judge(trial)

    def _judge(self, trial: Trial) -> None:
        """Stop a trial if the pruner rejects one of its new values."""
        seen = self.judged.get(trial.number, 0)
        for step in [int(x) for x in trial.curves[0].x if x > seen] if trial.curves else ():
            self.judged[trial.number] = step
            if self.study.should_stop(trial, self.trials, step):
                self.runner.stop([trial.number])
                self.journal.decide(trial, pruned=step)
                return

    def _check_objectives(self, trial: Trial) -> None:
        """
        Raises:
            ConfigError: the trial logs other metrics of the group, but not the objective.
        """
        for objective in self.settings.objectives:
            group = objective.partition("/")[0] + "/"
            names = [name for name in trial.logged if name.startswith(group)] or (
                [*trial.logged] if trial.state == "completed" else []
            )
            if names and objective not in trial.logged:
                raise ConfigError(f"hpo.objective={objective}: is not logged; choose one of {', '.join(names)}.")


def remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
