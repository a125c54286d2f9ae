"""The trials of a search in Optuna's journal storage: their values, and the decisions about them.

The result of a trial is in its run. The journal gets it as well, for samplers, pruners and
`optuna-dashboard`.
"""

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from launcher.errors import ConfigError
from launcher.rundir.files import replace_file
from launcher.runs.stored_study import DAMAGES, JOURNAL, Value, backend, params_of, repair
from launcher.search.samplers import TrialSampler
from launcher.search.settings import Settings
from launcher.search.space import Space
from launcher.search.trials import Trial

STATES = {
    "open": TrialState.RUNNING,
    "paused": TrialState.PRUNED,
    "pruned": TrialState.PRUNED,
    "completed": TrialState.COMPLETE,
    "failed": TrialState.FAIL,
    "invalid": TrialState.FAIL,
}
DECIDED = ("origin", "refusal", "bracket", "target", "pruned", "cancelled", "failures")
"""Data about a trial in the journal besides its values and its run, as user attributes."""
MOST_VALUES = 200
"""Number of values of the objective that the journal gets from a trial. A durable line for each
value would delay the search."""

Params = dict[str, object]
Seen = tuple[TrialState, list[float] | None]


class LiveStorage(JournalStorage):
    """A journal that shows samplers and pruners the current state of all trials.

    A paused trial counts as pruned, but may be promoted, so the journal has it as waiting. A
    trial that was pruned or has failed, and trains further under other settings, has ended in
    the journal.
    """

    def __init__(self, path: Path):
        super().__init__(backend(path))
        self.seen: dict[int, Seen] = {}
        """The state and values of such trials, by their numbers."""

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Any = None
    ) -> list[FrozenTrial]:
        trials = [self._as_seen(trial) for trial in super().get_all_trials(study_id, deepcopy)]
        return [trial for trial in trials if states is None or trial.state in states]

    def recorded(self, study_id: int) -> list[FrozenTrial]:
        """The trials as the journal has them."""
        return super().get_all_trials(study_id, deepcopy=False)

    def _as_seen(self, trial: FrozenTrial) -> FrozenTrial:
        if trial.number not in self.seen:
            return trial
        changed = copy(trial)
        changed.state, changed.values = self.seen[trial.number]
        return changed


class TrialStore:
    """Stores the trials of a study; `max_steps` is 0 if they are not known."""

    def __init__(self, folder: Path, settings: Settings, space: Space, max_steps: int = 0):
        self.path, self.settings, self.space = folder / JOURNAL, settings, space
        self.spacing = max(1.0, max_steps / MOST_VALUES)
        self.queue: Sequence[Params] = ()
        self._cut_off: list[int] = []
        """Trials whose values were being sampled when their search was killed."""
        self._ended: set[int] = set()
        """Trials that the journal has completely, and that no longer change."""
        self._reported: dict[int, float] = {}
        """The last step of each trial whose value the journal has."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)

    def load(self) -> list[Trial]:
        """Open the journal, or make it if there is none, and return its trials."""
        if not self.path.exists():
            # This makes its name durable.
            replace_file(self.path, b"")
        repair(self.path)
        try:
            self.storage = LiveStorage(self.path)
            self.study = self._open()
        except DAMAGES as error:
            raise ConfigError(
                f"{self.path}: is damaged; move it away to start the study again."
            ) from error
        self.id = self.storage.get_study_id_from_name(self.study.study_name)
        frozen = self.study.get_trials(deepcopy=False)
        self._cut_off = [trial.number for trial in frozen if is_cut_off(trial)]
        self._reported = {trial.number: trial.last_step or 0 for trial in frozen}
        return [self._trial(trial) for trial in frozen if is_recorded(trial)]

    def _open(self) -> optuna.Study:
        names = optuna.get_all_study_names(self.storage)
        if names:
            study = optuna.load_study(study_name=names[0], storage=self.storage)
        else:
            study = optuna.create_study(
                study_name=self.path.parent.name,
                storage=self.storage,
                directions=[
                    StudyDirection[direction.upper()] for direction in self.settings.directions
                ],
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            if study.metric_names != (objectives := list(self.settings.objectives)):
                study.set_metric_names(objectives)
        if study.user_attrs.get("value") != self.settings.value:
            study.set_user_attr("value", self.settings.value)
        return study

    def forget(self) -> None:
        """Remove the journal."""
        self.path.unlink(missing_ok=True)

    # -------------------------------------------------------------------------------- what is asked
    def ask(
        self, trials: Sequence[Trial], extend: Callable[[Params, optuna.Trial], None] | None = None
    ) -> Trial:
        """Make a new trial, which counts once it is recorded (see `record`).

        `extend` suggests further values of the trial, from the values of the space.
        """
        sampled, enqueued = (
            sum(trial.origin == origin for trial in trials) for origin in ("sampled", "enqueued")
        )
        fixed = self.queue[enqueued] if enqueued < len(self.queue) else None
        waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if fixed is not None and not waiting and not self._cut_off:
            self.study.enqueue_trial(dict(fixed))
        if self._cut_off:
            number = self._cut_off[0]
        elif waiting:
            number = waiting[0].number
        else:
            number = len(self.study.get_trials(deepcopy=False)) - (fixed is not None)
        self.study.sampler = TrialSampler(self.settings, self.space, number, sampled)
        asked = optuna.Trial(self.study, self._id_of(number)) if self._cut_off else self.study.ask()
        for key, among in self.space.items():
            suggest(asked, key, among)
        if extend is not None:
            extend(params_of(self._stored(number)), asked)
        self._cut_off = [cut_off for cut_off in self._cut_off if cut_off != number]
        stored = self._stored(number)
        is_enqueued = fixed is not None and has_values(stored, fixed)
        return Trial(number, params_of(stored), origin="enqueued" if is_enqueued else "sampled")

    def record(self, trial: Trial) -> None:
        """Record the run of a new trial. The decisions about the trial are recorded first."""
        self._set(trial, *DECIDED, "run")

    def decide(self, trial: Trial, **decisions: object) -> None:
        """Record a decision before it has any effect, if the trial has not ended in the journal."""
        vars(trial).update(decisions)
        self._set(trial, *decisions)

    def _set(self, trial: Trial, *names: str) -> None:
        stored = self._stored(trial.number)
        default = Trial(trial.number, {})
        for name in names:
            value = getattr(trial, name)
            if not stored.state.is_finished() and value != stored.user_attrs.get(
                name, getattr(default, name)
            ):
                self.storage.set_trial_user_attr(self._id_of(trial.number), name, value)

    def add_known(self, trial: Trial) -> None:
        """Record a completed trial that the study did not sample."""
        points = trial.curves[0] if len(trial.curves) == 1 else None
        self.study.add_trial(
            optuna.trial.create_trial(
                values=trial.values(self.settings),
                params=trial.params,
                distributions=self.space,
                user_attrs={"origin": trial.origin, "run": trial.run},
                intermediate_values=dict(self._spaced(points, 0)) if points is not None else None,
            )
        )

    # ------------------------------------------------------------------------------ what came of it
    def sync(self, trials: Sequence[Trial]) -> None:
        """Record the progress of the trials, and which of them have ended."""
        recorded = self.storage.recorded(self.id)
        for trial in trials:
            if trial.number not in self._ended:
                self._report(trial, recorded[trial.number])
                self._tell(trial, recorded[trial.number])

    def _report(self, trial: Trial, stored: FrozenTrial) -> None:
        if len(trial.curves) != 1 or stored.state.is_finished():
            return
        for step, value in self._spaced(trial.curves[0], self._reported.get(trial.number, 0)):
            self.storage.set_trial_intermediate_value(self._id_of(trial.number), step, value)
            self._reported[trial.number] = step

    def _spaced(self, curve: Any, after: float) -> list[tuple[int, float]]:
        """Points of a curve that are at least `spacing` steps apart."""
        points: list[tuple[int, float]] = []
        for step, value in zip(map(int, curve.x), curve.y, strict=True):
            if step >= after + self.spacing:
                points.append((step, value))
                after = step
        return points

    def _tell(self, trial: Trial, stored: FrozenTrial) -> None:
        status = trial.status(self.settings)
        values = trial.values(self.settings) if status == "completed" else None
        seen: Seen = STATES[status], values
        wanted: Seen = (TrialState.WAITING, None) if status == "paused" else seen
        recorded: Seen = (
            stored.state,
            stored.values if stored.state == TrialState.COMPLETE else None,
        )
        if recorded != wanted and not stored.state.is_finished():
            self.storage.set_trial_state_values(self._id_of(trial.number), *wanted)
            recorded = wanted
        if recorded != seen:
            self.storage.seen[trial.number] = seen
            return
        self.storage.seen.pop(trial.number, None)
        if seen[0].is_finished() and status != "paused":
            self._ended.add(trial.number)

    def steps(self, trial: Trial) -> list[int]:
        """The steps whose values the journal has."""
        return sorted(self._stored(trial.number).intermediate_values)

    def should_stop(self, trial: Trial, step: int) -> bool:
        """Return whether the pruner would stop a running trial after the value of this step."""
        settings, pruners = self.settings, optuna.pruners
        options = {
            "n_startup_trials": settings.n_startup_trials,
            "n_warmup_steps": settings.warmup_steps,
        }
        pruner = (
            pruners.MedianPruner(**options)
            if settings.pruner == "median"
            else pruners.PercentilePruner(settings.percentile, **options)
        )
        until = copy(self._stored(trial.number))
        until.intermediate_values = {
            x: y for x, y in until.intermediate_values.items() if x <= step
        }
        return pruner.prune(self.study, until)

    # ------------------------------------------------------------------------------ Optuna's trials
    def _id_of(self, number: int) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self.id, number)

    def _stored(self, number: int) -> FrozenTrial:
        return self.storage.get_trial(self._id_of(number))

    def _trial(self, stored: FrozenTrial) -> Trial:
        attributes = {
            name: stored.user_attrs[name] for name in (*DECIDED, "run") if name in stored.user_attrs
        }
        return Trial(stored.number, params_of(stored), **attributes)


def is_recorded(trial: FrozenTrial) -> bool:
    return "run" in trial.user_attrs or "refusal" in trial.user_attrs


def is_cut_off(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.RUNNING and not is_recorded(trial)


def has_values(trial: FrozenTrial, values: Params) -> bool:
    return all(trial.params[key] == value for key, value in values.items() if key in trial.params)


def suggest(trial: optuna.Trial, key: str, among: object) -> Value | None:
    """Sample a key's value, if the trial does not have it yet."""
    if isinstance(among, CategoricalDistribution):
        return trial.suggest_categorical(key, among.choices)
    if isinstance(among, IntDistribution):
        return trial.suggest_int(key, among.low, among.high, step=among.step, log=among.log)
    assert isinstance(among, FloatDistribution)
    return trial.suggest_float(key, among.low, among.high, log=among.log)
