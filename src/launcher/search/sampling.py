"""Samples new trials, and judges running ones, with a study of Optuna in memory.

The study is rebuilt from the runs at each start of a search, and then follows them. A trial's seed
is its number, so a search that was killed asks for the same trials again.
"""

import copy
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from launcher.runs.stored_study import STATES
from launcher.runs.trials import Trial
from launcher.search.samplers import make_sampler
from launcher.search.search_space import Space
from launcher.search.study_settings import Settings

WAITING = (TrialState.WAITING,)

Params = dict[str, object]


class FollowingStorage(InMemoryStorage):
    """Shows samplers and pruners the current state of all trials.

    In Optuna a trial that has ended stays so. Here a paused trial counts as pruned and may be
    promoted, and a pruned one may train further under other settings.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current: dict[int, FrozenTrial] = {}
        """The trials that have a run, by number."""

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Any = None
    ) -> list[FrozenTrial]:
        asked = super().get_all_trials(study_id, False, states if states == WAITING else None)
        trials = [self.current.get(trial.number, trial) for trial in asked]
        trials = [trial for trial in trials if states is None or trial.state in states]
        if deepcopy:
            return [copy.deepcopy(trial) for trial in trials]
        return trials


class Sampling:
    """Samples the trials of a study.

    Args:
        settings: `hpo.*`.
        space: the search space.
        trials: the trials so far. A number that none of them has is asked for first.
        enqueue: values of the first trials.
    """

    def __init__(
        self,
        settings: Settings,
        space: Space,
        trials: Sequence[Trial] = (),
        enqueue: Sequence[Params] = (),
    ):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.settings = settings
        self.space = space
        self.storage = FollowingStorage()
        self.study = optuna.create_study(
            storage=self.storage,
            direction=settings.direction,
        )
        self._id = self.storage.get_study_id_from_name(self.study.study_name)
        self._enqueued: set[int] = set()
        self._rebuild({trial.number: trial for trial in trials}, enqueue)

    def _rebuild(self, trials: dict[int, Trial], enqueue: Sequence[Params]) -> None:
        tried = sum(trial.origin == "enqueued" for trial in trials.values())
        queue = list(enqueue[tried:])
        for number in range(max(trials, default=-1) + 1):
            trial = trials.get(number)
            if trial is not None:
                self.study.add_trial(
                    create_trial(
                        state=TrialState.RUNNING,
                        params=trial.sampled,
                        distributions=trial.distributions,
                        system_attrs=trial.attributes,
                    )
                )
                self.follow(trial)
            elif queue:
                self._enqueue(number, queue.pop(0))
            else:
                self.study.add_trial(create_trial(state=TrialState.WAITING))
        for number, fixed in enumerate(queue, max(trials, default=-1) + 1):
            self._enqueue(number, fixed)

    def _enqueue(self, number: int, fixed: Params) -> None:
        self.study.enqueue_trial(fixed)
        self._enqueued.add(number)

    def ask(self) -> Trial:
        """Make a new trial. It counts once its run's record has it."""
        waiting = self.study.get_trials(deepcopy=False, states=WAITING)
        number = waiting[0].number if waiting else len(self.study.get_trials(deepcopy=False))
        self.study.sampler = make_sampler(self.settings, number)
        self.study.ask(self.space)
        stored = self._get_trial(number)
        return Trial(
            self.settings,
            number,
            stored.params,
            stored.distributions,
            stored.system_attrs,
            origin="enqueued" if number in self._enqueued else "sampled",
        )

    def _get_trial(self, number: int) -> FrozenTrial:
        return self.storage.get_trial(
            self.storage.get_trial_id_from_study_id_trial_number(self._id, number)
        )

    def follow(self, trial: Trial) -> None:
        """Take over the current state of a trial."""
        status = trial.status
        current = copy.copy(self._get_trial(trial.number))
        current.state = TrialState[STATES.get(status, "RUNNING")]
        current.values = [trial.value] if status == "completed" else None
        current.intermediate_values = trial.curve.by_step()
        self.storage.current[trial.number] = current

    def steps(self, trial: Trial) -> list[int]:
        """The steps whose values pruners see."""
        return [*self.storage.current[trial.number].intermediate_values]

    def should_stop(self, trial: Trial, step: int) -> bool:
        """Return whether the pruner would stop a running trial after the value of this step."""
        settings = self.settings
        pruner = optuna.pruners.MedianPruner(
            n_startup_trials=settings.n_startup_trials, n_warmup_steps=settings.warmup_steps
        )
        until = copy.copy(self.storage.current[trial.number])
        until.intermediate_values = {
            x: y for x, y in until.intermediate_values.items() if x <= step
        }
        return pruner.prune(self.study, until)
