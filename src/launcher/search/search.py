"""The search: it makes, starts, pauses, promotes and stops trials."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna

from launcher.cli.sweep_job import SweepJob
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.rundir.folder import RunFolder
from launcher.rundir.holder import HELD, is_held
from launcher.runs.format import number as short
from launcher.search import rungs as halving
from launcher.search.conditional import suggest
from launcher.search.local import CANCELLED, Runner
from launcher.search.samplers import size
from launcher.search.settings import LIVE, Settings
from launcher.search.space import Space, enqueued, overrides_of
from launcher.search.trial_store import TrialStore
from launcher.search.trials import Trial, best_of, described

Compose = Callable[[list[str], int], SweepJob]
MAX_BACKOFF = 16
"""The time between two checks of the trials grows to at most this many times `poll`, if the checks
take long."""


class Search:
    """Runs the trials of a study.

    Args:
        folder: folder of the study.
        outputs: the folder of all runs.
        fixed: overrides that all trials share.
        compose: returns the checked job of a trial's overrides, or raises ConfigError.
        runner: trains the trials.
        rungs: the steps at which trials pause.
        max_steps: steps of a trial, or 0 if they are not known.
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
        max_steps: int,
        say: Callable[[str], None],
        show: Callable[["Search"], None] = lambda search: None,
    ):
        self.folder, self.outputs, self.settings, self.space = folder, outputs, settings, space
        self.fixed, self.compose, self.runner, self.rungs = fixed, compose, runner, rungs
        self.poll, self.say, self.show = runner.poll, say, show
        self.store = TrialStore(folder, settings, space, max_steps)
        self.has_function = settings.space_function is not None
        self.store.queue = [
            enqueued(params, space, self.has_function) for params in settings.enqueue
        ]
        self.trials: list[Trial] = []
        self.is_new = True
        self.judged: dict[int, int] = {}
        """The last step of each trial that the pruner has seen."""
        self.started = time.monotonic()
        self._max_trials = min(settings.n_trials, size(settings, space))

    def load(self) -> None:
        """Read the trials of an earlier search."""
        self.trials = self.store.load()
        self.is_new = not self.trials
        for trial in self.trials:
            trial.look(self.outputs, self.settings)
            self._follow_pruner(trial)
        self.store.sync(self.trials)

    def _follow_pruner(self, trial: Trial) -> None:
        """Let a trial train to its end, or to a rung of the new pruner."""
        if trial.target is not None and trial.target not in self.rungs:
            self.store.decide(trial, target=halving.next_rung(trial.target, self.rungs))
        if trial.pruned is not None and not trial.cancelled and self.settings.pruner == "none":
            self.store.decide(trial, pruned=None)

    def forget_unless_begun(self) -> None:
        """Remove the journal if none of the trials has a run yet."""
        if self.is_new and not any(
            trial.run and (self.outputs / trial.run).exists() for trial in self.trials
        ):
            self.store.forget()

    def run(self) -> None:
        """Run trials until the study is complete, or a signal came and the trials have saved."""
        try:
            self._adopt()
            while True:
                began = time.monotonic()
                self._look()
                pause = self._pause(time.monotonic() - began)
                signals.check()
                while (
                    len(self.runner.running()) < self.settings.parallel
                    and (trial := self._next()) is not None
                ):
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
        """Return the seconds until the next check of the trials, more if a check takes long."""
        return max(self.poll, min(9 * took, MAX_BACKOFF * self.poll))

    def _sleep(self, seconds: float) -> None:
        """Sleep. A signal ends it."""
        end = time.monotonic() + seconds
        while not signals.received() and (rest := end - time.monotonic()) > 0:
            time.sleep(min(rest, self.poll))

    # --------------------------------------------------------------------------------- what is next
    def _next(self) -> Trial | None:
        """Choose the trial that gets a free slot: an interrupted, a promoted, or a new one."""
        busy = self.runner.running()
        for trial in self.trials:
            is_idle = trial.number not in busy and not self._is_twin_of(trial, busy)
            if trial.status(self.settings) == "open" and is_idle and not self._is_held(trial):
                return trial
        if (promoted := halving.promotable(self.trials, self.rungs, self.settings)) is not None:
            target = halving.next_rung(promoted.target or 0, self.rungs)
            return self._promote(
                promoted,
                target,
                f"is among the best 1/{self.settings.reduction_factor} at step {promoted.target}",
            )
        while self._asked() < self._max_trials and not self._is_late():
            trial = self._ask()
            if trial.status(self.settings) == "open" and not self._is_twin_of(trial, busy):
                return trial
        if (
            not busy
            and (best := halving.best_paused(self.trials, self.rungs, self.settings)) is not None
        ):
            return self._promote(best, None, "is the best of the highest rung")
        return None

    def _asked(self) -> int:
        return sum(trial.origin != "known" for trial in self.trials)

    def _is_late(self) -> bool:
        return (
            self.settings.timeout is not None
            and time.monotonic() - self.started > self.settings.timeout
        )

    def _is_twin_of(self, trial: Trial, numbers: set[int]) -> bool:
        """Return whether one of these trials has the same run."""
        return any(other.run == trial.run for other in self.trials if other.number in numbers)

    def _held_elsewhere(self) -> bool:
        """Return whether another process, such as a killed search's child, works on a trial."""
        return any(
            trial.status(self.settings) == "open" and self._is_held(trial) for trial in self.trials
        )

    def _is_held(self, trial: Trial) -> bool:
        return is_held(RunFolder(self.outputs / str(trial.run)))

    def _promote(self, trial: Trial, target: int | None, why: str) -> Trial:
        self.store.decide(trial, target=target)
        self.say(f"trial {trial.number}: {why}, resumes")
        return trial

    def _ask(self) -> Trial:
        """Make a new trial, which is recorded before it is started."""
        trial = self.store.ask(self.trials, self._extend if self.has_function else None)
        trial.bracket = halving.bracket_of(trial.number, self.rungs, self.settings)
        trial.target = halving.first_target(trial.bracket, self.rungs)
        try:
            trial.run = self.compose(self.overrides(trial.params), trial.number).run
        except ConfigError as error:
            trial.refusal = error.messages[0]
        self.store.record(trial)
        self.trials.append(trial)
        trial.look(self.outputs, self.settings)
        self._report_new(trial)
        self.store.sync([trial])
        return trial

    def overrides(self, params: dict[str, Any]) -> list[str]:
        """Return the command line of a trial.

        A study keeps only the values, so that a moved study trains in the place of its command.
        """
        return [*self.fixed, *overrides_of(params)]

    def _extend(self, params: dict[str, object], trial: optuna.Trial) -> None:
        try:
            job = self.compose(self.overrides(params), trial.number)
        except ConfigError:
            # `_ask` rejects the trial for this.
            return
        suggest(str(self.settings.space_function), job.plain, trial)

    def _report_new(self, trial: Trial) -> None:
        text = f"trial {trial.number}: {' '.join(overrides_of(trial.params))}"
        twin = next(
            (other for other in self.trials[:-1] if other.run == trial.run and trial.run), None
        )
        status = trial.status(self.settings)
        if status == "invalid":
            self.say(f"{text}: is invalid: {trial.refusal}")
        elif twin is not None:
            trial.target, trial.pruned, trial.failures = twin.target, twin.pruned, twin.failures
            self.store.decide(trial, target=twin.target, pruned=twin.pruned, failures=twin.failures)
            self.say(f"{text}: is trial {twin.number} again")
        elif status == "completed":
            self.say(
                f"{text}: run {trial.run} is completed already, {described(trial, self.settings)}"
            )

    # --------------------------------------------------------------------------------- what happens
    def _start(self, trial: Trial) -> None:
        job = self.compose(self.overrides(trial.params), trial.number)
        if job.run != trial.run:
            raise ConfigError(
                f"{self.folder}: trial {trial.number} was run {trial.run} and would now be"
                f" {job.run}: the configuration was changed while the study ran; undo that, or move"
                " the study's folder away."
            )
        self.runner.start(trial.number, job.config.changed({"trainer.pause_at": trial.target}))
        how = self.runner.describe_start(trial.step)
        self.say(f"trial {trial.number}: {how}: {trial.run} {' '.join(overrides_of(trial.params))}")

    def _look(self) -> None:
        ended = self.runner.ended()
        running = self.runner.running()
        for trial in self.trials:
            if trial.number in running or trial.number in ended:
                trial.look(self.outputs, self.settings)
                # This holds whatever the state in run.json is, since its process has not ended yet.
                if trial.number in running:
                    trial.state = "running"
                self._check_objectives(trial)
        for trial in self.trials:
            if trial.number in ended:
                self._settle(trial, ended[trial.number])
            elif trial.number not in running and trial.status(self.settings) == "open":
                trial.look(self.outputs, self.settings)
        self.store.sync(self.trials)
        if self.settings.pruner in LIVE:
            for trial in self.trials:
                if trial.number in running and trial.status(self.settings) == "open":
                    self._judge(trial)

    def _settle(self, trial: Trial, code: int) -> None:
        """Record and report the end of a trial's process."""
        status = trial.status(self.settings)
        if status == "completed":
            best = ", the best so far" if trial in best_of(self.trials, self.settings) else ""
            text = f"completed, {described(trial, self.settings)}{best}"
        elif status == "pruned":
            text = f"pruned at step {trial.pruned}"
        elif status == "paused":
            value = trial.value_at(trial.target or 0, self.settings)
            text = f"paused at step {trial.step}, {self.settings.objectives[0]} {short(value)}"
            if value is None or not math.isfinite(value):
                self.store.decide(trial, failures=self.settings.max_failures + 1)
        elif status == "failed":
            text = f"failed: {described(trial, self.settings)}"
        elif code == CANCELLED:
            self.store.decide(trial, pruned=trial.step, cancelled=True)
            text = f"was cancelled at step {trial.step}; it counts as pruned"
        elif code > 128 or -code in signals.HANDLED:
            # It is negative if the signal came before the trial could handle it.
            text = f"was stopped by a signal at step {trial.step}"
        elif code == 2:
            refusal = self.runner.why(trial.number, code)
            # It is started again once the other process has ended.
            if HELD in refusal:
                return
            self.store.decide(trial, refusal=refusal)
            text = f"is invalid: {refusal}"
        # It is at an earlier rung, so it is started again.
        elif trial.state == "paused":
            return
        else:
            self.store.decide(trial, failures=trial.failures + 1)
            again = "" if trial.status(self.settings) == "failed" else "; it is started again"
            text = f"failed: {self._why(trial, code)}{again}"
        self.say(f"trial {trial.number}: {text}")

    def _why(self, trial: Trial, code: int) -> str:
        if code >= 0 and trial.reason and trial.state == "failed":
            return trial.reason.strip().partition("\n")[0]
        return self.runner.why(trial.number, code)

    def _judge(self, trial: Trial) -> None:
        """Stop a trial if the pruner rejects one of its new values."""
        seen = self.judged.get(trial.number, 0)
        for step in [step for step in self.store.steps(trial) if step > seen]:
            self.judged[trial.number] = step
            if self.store.should_stop(trial, step):
                self.runner.stop([trial.number])
                self.store.decide(trial, pruned=step)
                return

    def _check_objectives(self, trial: Trial) -> None:
        """Check that a trial has logged the objective."""
        for objective in self.settings.objectives:
            group = objective.partition("/")[0] + "/"
            names = [name for name in trial.logged if name.startswith(group)] or (
                [*trial.logged] if trial.state == "completed" else []
            )
            if names and objective not in trial.logged:
                raise ConfigError(
                    f"hpo.objective={objective}: is not logged; choose one of {', '.join(names)}."
                )
