"""New trials: the sampler's values, or enqueued ones, as the command line of a run."""

from collections.abc import Callable, Sequence
from typing import Any

import optuna

from launcher.cli.sweep import SweepJob
from launcher.errors import ConfigError
from launcher.sweepers import rungs as halving
from launcher.sweepers.conditional import suggest
from launcher.sweepers.settings import Settings
from launcher.sweepers.space import Space, enqueued, overrides_of
from launcher.sweepers.study import Study
from launcher.sweepers.trials import Trial

Compose = Callable[[list[str], int], SweepJob]


class Asker:
    """
    Args:
        fixed: overrides that all trials share.
        rungs: the steps at which trials pause.
        compose: the checked job of a trial's overrides; raises ConfigError if they are invalid.
    """

    def __init__(
        self, name: str, settings: Settings, space: Space, fixed: list[str], rungs: list[int], compose: Compose
    ):
        self.settings, self.fixed, self.rungs, self.compose = settings, fixed, rungs, compose
        extend = None if settings.space_function is None else self._extend
        self.study = Study(name, settings, space, extend)
        self.queue = [enqueued(params, space, extend is not None) for params in settings.enqueue]
        self.number = 0

    def ask(self, trials: Sequence[Trial]) -> Trial:
        """The trial after `trials`."""
        self.number = len(trials)
        index = sum(trial.origin == "enqueued" for trial in trials)
        fixed = self.queue[index] if index < len(self.queue) else None
        asked = self.study.ask(trials, fixed)
        bracket = halving.bracket_of(self.number, self.rungs, self.settings)
        trial = Trial(
            self.number,
            asked.params,
            asked.attrs,
            asked.ranges,
            origin="sampled" if fixed is None else "enqueued",
            bracket=bracket,
            target=halving.first_target(bracket, self.rungs),
        )
        try:
            trial.run = self.compose(self.overrides(trial.params), self.number).run
        except ConfigError as error:
            trial.refusal = error.sentences[0]
        return trial

    def overrides(self, params: dict[str, Any]) -> list[str]:
        """The command line of a trial, with what the current command sets for all trials. A study keeps only the
        values, so that a moved or copied one trains where its command says."""
        return [*self.fixed, *overrides_of(params)]

    def _extend(self, params: dict[str, Any], trial: optuna.Trial) -> None:
        try:
            job = self.compose(self.overrides(params), self.number)
        except ConfigError:
            return  # `ask` refuses the trial for this
        suggest(str(self.settings.space_function), job.plain, trial)
