"""The search: it makes, starts, pauses, promotes and stops trials."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.schema.metric_direction import meant_metrics
from launcher.dispatch.jobs import Job
from launcher.dispatch.queue import run_queue
from launcher.errors import REJECTED, ConfigError, NonFiniteError
from launcher.process import signals
from launcher.process.files import remove_empty, replace_file
from launcher.rundir.folder import RunFolder
from launcher.rundir.history import History
from launcher.rundir.lock_holder import ON_RUN, is_held
from launcher.rundir.record import RunRecord
from launcher.rundir.record_format import FORMAT_VERSION
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.runs.format import number as short
from launcher.runs.objective import curve_of
from launcher.runs.trials import INVALID, Trial, best_of, find_trials
from launcher.search import rungs as halving
from launcher.search.local_runner import CANCELLED, LocalRunner
from launcher.search.sampling import Sampling
from launcher.search.search_space import Space, check_enqueued, overrides_of
from launcher.search.slurm_runner import SlurmRunner
from launcher.search.study_settings import Settings

Compose = Callable[[list[str], int], Job]


@dataclass
class Search:
    """Runs the trials of a study.

    Args:
        folder: folder of the study.
        outputs: the folder of all runs.
        fixed: overrides that all trials share.
        compose: returns the checked job of a trial's overrides, or raises ConfigError.
        runner: trains the trials.
        rungs: the steps at which trials pause.
        say: prints a line.
    """

    folder: Path
    outputs: Path
    settings: Settings
    space: Space
    fixed: list[str]
    compose: Compose
    runner: LocalRunner | SlurmRunner
    rungs: list[int]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.enqueue = [check_enqueued(params, self.space) for params in self.settings.first]
        self.trials: list[Trial] = []
        self.new_runs: list[RunFolder] = []
        """The folders that this search has made."""
        self.unrecorded: set[int] = set()
        """Trials whose run another process works on, which writes its record."""
        self.is_warned = False
        """True once a line has said that the objective is not logged so far."""
        self.judged: dict[int, int] = {}
        """The last step of each trial that the pruner has seen."""
        self.started = time.monotonic()

    def load(self) -> None:
        """Read the trials of an earlier search from their runs."""
        records = find_trials(self.outputs, self.folder.name)
        self.trials = [Trial.of(data, run, self.settings) for data, run in records.values()]
        for trial in self.trials:
            if trial.run is not None and trial.rejection is not None:
                # A rejected configuration may be valid on this machine, or by this command.
                trial.rejection = None
                self.record(trial)
            self._follow_pruner(trial)
            is_changed = trial.as_data(self.folder.name) != records[trial.number][0]
            # A job that SLURM has may start at any moment.
            if is_changed and trial.status != "open":
                self.record(trial)

    def _follow_pruner(self, trial: Trial) -> None:
        """Let a trial train to its end, or to a rung of the new pruner."""
        if trial.target is not None and trial.target not in self.rungs:
            trial.target = halving.next_rung(trial.target, self.rungs)
        if trial.pruned is not None and not trial.cancelled and self.settings.pruner == "none":
            trial.pruned = None

    def record(self, trial: Trial, job: Job | None = None) -> None:
        """Write a trial into the record of its run, before it has any effect.

        Later, if a process is on the run or will be: only that one may write then.
        """
        data = trial.as_data(self.folder.name)
        self.unrecorded.discard(trial.number)
        if trial.run is None:
            path = self.folder / INVALID / f"trial-{trial.number:04d}.json"
            path.parent.mkdir(exist_ok=True)
            alone = {"format_version": FORMAT_VERSION, "trials": [data]}
            replace_file(path, json.dumps(alone).encode())
        elif self._is_held(trial) or trial.run in self._busy_runs():
            self.unrecorded.add(trial.number)
        else:
            folder = RunFolder(self.outputs / trial.run)
            if not folder.path.exists():
                self.new_runs.append(folder.create())
            RunRecord(folder).note_trial(data, job.config.record if job else {})

    def forget_unless_begun(self) -> None:
        """Remove the runs that this search has made and that were not started."""
        for folder in self.new_runs:
            if RunOnDisk.read(folder).recorded_state is None:
                shutil.rmtree(folder.path)
                remove_empty(folder.path.parent)
        self.trials = [
            trial for trial in self.trials if not trial.run or (self.outputs / trial.run).exists()
        ]

    def run(self) -> None:
        """Run trials until the study is complete, or a signal came and the trials have saved."""
        self.sampling = Sampling(self.settings, self.space, self.trials, self.enqueue)
        try:
            self._adopt()
            slots = self.settings.parallel
            steps = (self._start_next, self._look, self._sleep)
            run_queue(self.runner, slots, *steps, is_awaited=self._is_awaited)
        finally:
            self.runner.close()

    def _adopt(self) -> None:
        """Take over the trials that an earlier search has left running."""
        runs: dict[str, int] = {}
        for trial in self.trials:
            if trial.status == "open":
                runs.setdefault(str(trial.run), trial.number)
        self.runner.adopt({number: run for run, number in runs.items()})

    def _start_next(self) -> bool:
        found = self._next()
        if found is None:
            return False
        trial, job = found
        self._start(trial, job or self._compose(trial))
        return True

    def _sleep(self) -> None:
        """Sleep until the next check."""
        self.runner.flush()
        if not signals.first_signal():
            time.sleep(self.runner.poll)

    # --------------------------------------------------------------------------------- what is next
    def _next(self) -> tuple[Trial, Job | None] | None:
        """Choose the trial that gets a free slot: an interrupted, a promoted, or a new one.

        Returns:
            The trial, and its job if it is new, so that it was composed just now.
        """
        busy_runs = self._busy_runs()
        for trial in self.trials:
            is_open = trial.status == "open" and trial.run not in busy_runs
            if is_open and not self._is_held(trial) and not self._is_pruned(trial):
                return trial, None
        promoted = halving.promotable(self.trials, self.rungs, self.settings)
        if promoted is not None:
            target = halving.next_rung(promoted.target or 0, self.rungs)
            share = f"1/{self.settings.reduction_factor}"
            why = f"is among the best {share} at step {promoted.target}"
            return self._promote(promoted, target, why), None
        while len(self.trials) < self.settings.n_trials and not self._is_late():
            trial, job = self._ask()
            if trial.status == "open" and trial.run not in busy_runs:
                return trial, job
        best = halving.find_best_paused(self.trials, self.rungs, self.settings)
        if best is None or self.runner.running():
            return None
        return self._promote(best, None, "is the best of the highest rung"), None

    def _busy_runs(self) -> set[str | None]:
        busy = self.runner.running()
        return {trial.run for trial in self.trials if trial.number in busy}

    def _is_late(self) -> bool:
        return (
            self.settings.timeout is not None
            and time.monotonic() - self.started > self.settings.timeout
        )

    def _is_awaited(self) -> bool:
        """Return whether another process, such as a killed search's child, works on a trial."""
        return bool(self.unrecorded) or any(
            trial.status == "open" and self._is_held(trial) for trial in self.trials
        )

    def _is_held(self, trial: Trial) -> bool:
        return is_held(RunFolder(self.outputs / str(trial.run)))

    def _is_pruned(self, trial: Trial) -> bool:
        """Prune an interrupted trial that a killed search has stopped, or would have."""
        if self.settings.pruner != "median" or (step := self._find_rejection(trial)) is None:
            return False
        trial.pruned = step
        self._decide(trial)
        self.say(f"trial {trial.number}: pruned at step {step}")
        return True

    def _promote(self, trial: Trial, target: int | None, why: str) -> Trial:
        trial.target = target
        self._decide(trial)
        self.say(f"trial {trial.number}: {why}, resumes")
        return trial

    def _decide(self, trial: Trial) -> None:
        """Record a trial that was changed, and tell the sampler."""
        self.record(trial)
        self.sampling.follow(trial)

    def _ask(self) -> tuple[Trial, Job | None]:
        """Make a new trial, which is recorded before it is started, and its job if it is valid."""
        trial = self.sampling.ask()
        trial.bracket = halving.bracket_of(trial.number, self.rungs, self.settings)
        trial.target = halving.first_target(trial.bracket, self.rungs)
        job = None
        twin = None
        try:
            job = self._compose(trial)
        except ConfigError as error:
            trial.rejection = error.messages[0]
        if job is not None:
            trial.run = job.run
            twin = next((other for other in self.trials if other.run == trial.run), None)
        if twin is not None:
            trial.target = twin.target
            trial.pruned = twin.pruned
            trial.failures = twin.failures
        self.record(trial, job)
        self.trials.append(trial)
        trial.look(self.outputs)
        self.sampling.follow(trial)
        self._report_new(trial, twin)
        return trial, job

    def _compose(self, trial: Trial) -> Job:
        return self.compose(self.overrides(trial.params), trial.number)

    def overrides(self, params: dict[str, Any]) -> list[str]:
        """Return the command line of a trial.

        A study keeps only the values, so that a moved study trains in the place of its command.
        """
        return [*self.fixed, *overrides_of(params)]

    def _report_new(self, trial: Trial, twin: Trial | None) -> None:
        status = trial.status
        if status == "invalid":
            what = f"is invalid: {trial.rejection}"
        elif twin is not None:
            what = f"is trial {twin.number} again"
        elif status == "completed":
            what = f"run {trial.run} is completed already, {trial.describe()}"
        else:
            return
        self.say(f"trial {trial.number}: {' '.join(overrides_of(trial.params))}: {what}")

    # --------------------------------------------------------------------------------- what happens
    def _start(self, trial: Trial, job: Job) -> None:
        if job.run != trial.run:
            raise ConfigError(
                f"{self.folder}: trial {trial.number} was run {trial.run} and would now be"
                f" {job.run}: the configuration was changed while the study ran; undo that, or"
                " search under another name with hpo.name=<name>."
            )
        how = self.runner.describe_start(trial.saved_step)
        self.runner.start(trial.number, job.config.replace({"trainer.pause_at": trial.target}))
        self.say(f"trial {trial.number}: {how}: {trial.run} {' '.join(overrides_of(trial.params))}")

    def _look(self, ended: dict[int, int]) -> None:
        running = self.runner.running()
        busy_runs = self._busy_runs()
        # Equal trials have one run.
        seen = busy_runs | {trial.run for trial in self.trials if trial.number in ended}
        for trial in self.trials:
            if trial.run in seen:
                trial.look(self.outputs)
                # A busy trial is running whatever run.json says, since its process has not ended.
                if trial.run in busy_runs:
                    trial.state = "running"
                self._check_objective(trial)
        for trial in self.trials:
            if trial.number in ended:
                self._settle(trial, ended[trial.number])
            elif trial.run not in seen and trial.status == "open":
                trial.look(self.outputs)
            elif trial.run not in seen:
                continue
            self.sampling.follow(trial)
            if trial.number in running:
                self._judge(trial)
        for trial in [each for each in self.trials if each.number in self.unrecorded - running]:
            self.record(trial)

    def _settle(self, trial: Trial, code: int) -> None:
        """Record and report the end of a trial's process."""
        status = trial.status
        if status == "completed":
            best = ", the best so far" if trial is best_of(self.trials, self.settings) else ""
            text = f"completed, {trial.describe()}{best}"
        elif status == "pruned":
            self.record(trial)
            text = f"pruned at step {trial.pruned}"
        elif status == "paused":
            value = trial.value_at(trial.target or 0)
            text = f"paused at step {trial.step}, {self.settings.objective} {short(value)}"
        elif status == "failed":
            text = f"failed: {trial.describe()}"
        elif code == CANCELLED:
            trial.pruned = trial.step
            trial.cancelled = True
            self._decide(trial)
            text = f"was cancelled at step {trial.step}; it counts as pruned"
        elif code > 128 or -code in signals.HANDLED:
            # The code is negative if the signal came before the trial could handle it.
            text = f"was stopped by a signal at step {trial.step}"
        elif code == REJECTED:
            rejection = self.runner.why(trial.number, code)
            # The trial is started again once the other process has ended.
            if ON_RUN in rejection:
                return
            trial.rejection = rejection
            self._decide(trial)
            text = f"is invalid: {rejection}"
        # A paused run is at an earlier rung, so it is started again.
        elif trial.state == "paused":
            return
        else:
            text = self._count_failure(trial, code)
        self.say(f"trial {trial.number}: {text}")

    def _count_failure(self, trial: Trial, code: int) -> str:
        """Record that a trial has failed, and return what happened and what follows."""
        trial.failures += 1
        if (trial.reason or "").startswith(f"{NonFiniteError.__name__}:"):
            # The same steps would give the same numbers.
            trial.failures = max(trial.failures, self.settings.max_failures + 1)
        self._decide(trial)
        then = ""
        if trial.status != "failed":
            step = trial.saved_step
            then = f"; it resumes at step {step}" if step else "; it starts again"
        return f"failed: {self._why(trial, code)}{then}"

    def _why(self, trial: Trial, code: int) -> str:
        if code >= 0 and trial.reason and trial.state == "failed":
            return trial.reason.strip().partition("\n")[0]
        return self.runner.why(trial.number, code)

    def _judge(self, trial: Trial) -> None:
        """Stop a running trial if the pruner rejects it. This is recorded once it has ended."""
        if self.settings.pruner == "median" and trial.status == "open":
            trial.pruned = self._find_rejection(trial)
            if trial.pruned is not None:
                self.runner.stop([trial.number])

    def _find_rejection(self, trial: Trial) -> int | None:
        """Return the first new step after whose value the pruner would stop a trial."""
        seen = self.judged.get(trial.number, 0)
        for step in [step for step in self.sampling.steps(trial) if step > seen]:
            self.judged[trial.number] = step
            if self.sampling.should_stop(trial, step):
                return step
        return None

    def _check_objective(self, trial: Trial) -> None:
        """Check that a trial logs the objective, which may be absent at first.

        A slip in the name of a logged metric ends the search after two values of that metric. Any
        other name is said once, and is an error once a trial has ended without it. If another trial
        has logged the objective, the trial fails alone.
        """
        objective = self.settings.objective
        if any(objective in each.logged for each in (trial, *self.trials)):
            return
        text = f"hpo.objective={objective}: is not logged"
        has_ended = trial.state == "completed" or trial.is_at_rung
        meant = meant_metrics(objective, trial.logged)
        if meant and trial.stored is not None:
            values = curve_of(History.of(trial.stored.folder), meant[0])
            if has_ended or len(values.y) > 1:
                raise ConfigError(f"{text}; choose one of {', '.join(meant)}.")
        group = objective.partition("/")[0] + "/"
        names = [name for name in trial.logged if name.startswith(group)]
        if has_ended and trial.logged:
            raise ConfigError(f"{text}; choose one of {', '.join(names or trial.logged)}.")
        if names and not self.is_warned:
            self.is_warned = True
            self.say(f"{text} so far; there are {', '.join(names)}")
