"""New trials are those of Optuna's own study, also after a search was killed anywhere."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from launcher.rundir.folder import RunFolder
from launcher.rundir.record import RunRecord
from launcher.search.samplers import make_sampler
from launcher.search.search import Search
from launcher.search.study_settings import Settings
from support.toy_trials import EVERY, MAX_STEPS, Killed, ToyRunner, composed, loss, search

SPACE = {
    "model.width": CategoricalDistribution(["8", "16"]),
    "x": FloatDistribution(0.0, 0.9),
    "z": FloatDistribution(1e-3, 1.0, log=True),
}
SOON = {"n_startup_trials": 2}
SAMPLERS: list[tuple[str, dict[str, object], Any, int]] = [
    ("random", {}, SPACE, 6),
    ("tpe", SOON, SPACE, 12),
    ("tpe", SOON | {"multivariate": False}, SPACE, 8),
    ("gp", SOON, SPACE, 3),
]


class Stepwise(ToyRunner):
    """Trials that train `EVERY` steps between two checks."""

    def __init__(self, outputs: Path):
        super().__init__(outputs)
        self.open: dict[int, tuple[RunRecord, float]] = {}

    def start(self, number: int, config: Any) -> None:
        self.starts.append(number)
        record = RunRecord(RunFolder(self.outputs / config.name).create())
        record.begin_attempt(
            start_step=record.step, max_steps=MAX_STEPS, world_size=1, strategy="none"
        )
        self.open[number] = record, config.plain["x"]

    def running(self) -> set[int]:
        return {*self.open, *self.codes}

    def reap(self) -> dict[int, int]:
        for number, (record, x) in list(self.open.items()):
            step = record.step + EVERY
            with open(record.folder.metrics_path, "a") as file:
                file.write(json.dumps({"step": step, "val/loss": loss(x, step)}) + "\n")
            record.progress(step, force=True)
            if step == MAX_STEPS:
                record.end_attempt("completed", end_step=step, exit_code=0)
                self.codes[number] = 0
                del self.open[number]
        return super().reap()

    def stop(self, numbers: Any) -> None:
        for number in numbers:
            record, _ = self.open.pop(number)
            record.end_attempt("preempted", end_step=record.step, exit_code=143)
            self.codes[number] = 143


def settings_of(sampler: str, options: Mapping[str, object], **keys: Any) -> Settings:
    return Settings(
        "val/loss", "minimize", sampler=sampler, sampler_options=options, n_trials=99, **keys
    )


def optimized(
    sampler: str, options: Any, space: Any, count: int, pruner: Any = None
) -> list[optuna.trial.FrozenTrial]:
    """The trials of a study that Optuna runs, with the sampler's seed from the trial's number."""
    settings = settings_of(sampler, options)

    def objective(trial: optuna.Trial) -> float:
        for key, among in space.items():
            suggest(trial, key, among)
        x = float(f"{float(trial.params['x']):.6g}")
        for step in range(EVERY, MAX_STEPS, EVERY):
            trial.report(loss(x, step), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss(x, MAX_STEPS)

    def seed(study: optuna.Study, number: int) -> None:
        study.sampler = make_sampler(settings, number)

    study = optuna.create_study(pruner=pruner or optuna.pruners.NopPruner())
    seed(study, 0)
    study.optimize(objective, count, callbacks=[lambda study, last: seed(study, last.number + 1)])
    return study.trials


def suggest(trial: optuna.Trial, key: str, among: Any) -> object:
    if isinstance(among, CategoricalDistribution):
        return trial.suggest_categorical(key, among.choices)
    return trial.suggest_float(key, among.low, among.high, log=among.log)


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "options", "space", "count"), SAMPLERS)
def test_trials_are_those_of_optunas_own_study_in_one_search_and_in_many(
    tmp_path, sampler, options, space, count
):
    expected = [trial.params for trial in optimized(sampler, options, space, count)]
    keys = {"sampler": sampler, "sampler_options": options}
    whole = search(tmp_path / "whole", ToyRunner(tmp_path / "whole"), space, n_trials=count, **keys)
    whole.run()
    assert [trial.sampled for trial in whole.trials] == expected
    for number in (1, count // 2, count):
        parts = search(
            tmp_path / "parts", ToyRunner(tmp_path / "parts"), space, n_trials=number, **keys
        )
        parts.run()
    assert [trial.sampled for trial in parts.trials] == expected
    assert len({str(params) for params in expected}) == count


def test_pruned_are_those_that_optuna_prunes(tmp_path):
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=EVERY)
    trials = optimized("tpe", SOON, SPACE, 12, pruner)
    ends = [trial.last_step if trial.state == TrialState.PRUNED else None for trial in trials]
    keys: Any = {"sampler": "tpe", "sampler_options": SOON, "pruner": "median"}
    keys |= {"n_startup_trials": 2, "warmup_steps": EVERY}
    for count in (3, 7, 12):
        made = search(tmp_path, Stepwise(tmp_path), SPACE, n_trials=count, **keys)
        made.run()
    assert 2 < sum(end is not None for end in ends) < 10
    assert [trial.pruned for trial in made.trials] == ends
    assert [trial.sampled for trial in made.trials] == [trial.params for trial in trials]


class Fuse:
    """Kills the search at an event."""

    def __init__(self, limit: int | None = None):
        self.limit, self.count = limit, 0

    def burn(self, *_: object) -> None:
        self.count += 1
        if self.count == self.limit:
            raise Killed

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.burn()
            result = function(*arguments)
            self.burn()
            return result

        return call


KILLED: dict[str, tuple[int, dict[str, Any]]] = {
    "halving": (3, {"pruner": "asha", "n_trials": 5}),
    "equal": (5, {"pruner": "asha", "n_trials": 7, "first": [{"x": x} for x in (0.5, 0.3, 0.3)]}),
    "pruned": (11, {"pruner": "median", "n_trials": 6} | SOON),
    "invalid": (3, {"n_trials": 5, "first": [{"x": 0.95}, {"x": 0.5}, {"x": 0.5}]}),
}
"""Settings, and at how many of the events a search is killed: each so many."""


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_search_that_is_killed_anywhere_asks_and_trains_the_same(tmp_path, name):
    space = SPACE | {"x": FloatDistribution(0.0, 1.0)}
    each, settings = KILLED[name]
    make = Stepwise if name == "pruned" else ToyRunner

    def run(folder: Path, fuse: Fuse) -> Search:
        runner = make(folder)
        runner.start = fuse.around(runner.start)  # type: ignore[method-assign]
        runner.reap = fuse.around(runner.reap)  # type: ignore[method-assign]
        keys = {"sampler": "tpe", "sampler_options": SOON} | settings
        compose, say = fuse.around(composed), fuse.burn
        made = search(folder, runner, space, compose=compose, say=say, **keys)
        made.run()
        return made

    fuse = Fuse()
    whole = run(tmp_path / "whole", fuse)
    assert fuse.count > 30
    for limit in range(1, fuse.count, each):
        folder = tmp_path / str(limit)
        with pytest.raises(Killed):
            run(folder, Fuse(limit))
        close_records(folder)
        again = run(folder, Fuse())
        for attribute in ("number", "sampled", "run", "step", "pruned", "target", "rejection"):
            values = [[getattr(trial, attribute) for trial in one.trials] for one in (again, whole)]
            assert values[0] == values[1], (limit, attribute)
        for trial in again.trials:
            if trial.run:
                rows = (folder / trial.run / "metrics.jsonl").read_text().splitlines()
                steps = [json.loads(row)["step"] for row in rows]
                assert steps == sorted(set(steps)), "trained twice"
        shutil.rmtree(folder)


def close_records(folder: Path) -> None:
    """End the open attempts: a killed search's children save and end."""
    for path in folder.glob("*/*/run.json"):
        record = RunRecord(RunFolder(path.parent))
        if record.attempts and record.attempt["outcome"] is None:
            record.end_attempt("preempted", end_step=record.step)


def test_a_trial_whose_run_was_removed_is_asked_for_again(tmp_path):
    keys: Any = {"sampler": "random", "first": [{"x": 0.25}]}
    before = search(tmp_path, ToyRunner(tmp_path), SPACE, n_trials=4, **keys)
    before.run()
    for number in (0, 2):
        shutil.rmtree(tmp_path / str(before.trials[number].run))
    again = search(tmp_path, runner := ToyRunner(tmp_path), SPACE, n_trials=5, **keys)
    again.run()
    trials = {trial.number: trial for trial in again.trials}
    assert runner.starts == [0, 2, 4]
    assert [trials[number].run for number in range(4)] == [trial.run for trial in before.trials]
