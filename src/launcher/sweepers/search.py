"""The search: asks for trials, starts them, pauses, promotes and stops them, until the study has all its trials."""

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
"""The most times that the seconds between two looks at the trials are multiplied where looks take long."""


class Search:
    """
    Args:
        folder: of the study.
        outputs: the folder that has the runs.
        compose: see `Asker`.
        runner: what trains trials.
        rungs: the steps at which trials pause.
        say: prints a line.
        show: redraws what shows the trials.
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
        self.folder, self.outputs, self.settings, self.space, self.fixed = folder, outputs, settings, space, fixed
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
        self.trials = self.journal.read()
        self.is_new = not self.trials
        for trial in self.trials:
            trial.look(self.outputs, self.settings)
            self._follow_pruner(trial)

    def _follow_pruner(self, trial: Trial) -> None:
        """The pruner may have changed since: a trial resumes to its end, or to a rung of the new one."""
        if trial.target is not None and trial.target not in self.rungs:
            self.journal.decide(trial, target=halving.next_rung(trial.target, self.rungs))
        if trial.pruned is not None and not trial.cancelled and self.settings.pruner == "none":
            self.journal.decide(trial, pruned=None)

    def forget_unless_begun(self) -> None:
        """Leave nothing of a study whose first trials cannot be started."""
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
        """Continue with the trials that an earlier search has left at work."""
        runs: dict[str, int] = {}
        for trial in self.trials:
            if trial.status(self.settings) == "open":
                runs.setdefault(str(trial.run), trial.number)
        self.runner.adopt({number: run for run, number in runs.items()})

    def _pause(self, took: float) -> float:
        """Seconds until the next look: more where a look takes long, as it does with many lines of metrics."""
        return max(self.poll, min(9 * took, LONGEST * self.poll))

    def _sleep(self, seconds: float) -> None:
        """A signal ends it."""
        end = time.monotonic() + seconds
        while not signals.received() and (rest := end - time.monotonic()) > 0:
            time.sleep(min(rest, self.poll))

    # ------------------------------------------------------------------------------------------------- what is next
    def _next(self) -> Trial | None:
        """The trial that gets a free slot: one that was interrupted, a promoted one, a new one."""
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
        return any(self.trials[number].run == trial.run for number in numbers)

    def _held_elsewhere(self) -> bool:
        """Whether another process works on an open trial, the children of a killed search for instance."""
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
        job = self.compose(trial.overrides, trial.number)
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
            if number in running:  # whatever run.json says: what trains it has not ended yet
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
        """Stop a trial whose newest values are worse than those of others at the same steps."""
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
