"""The search over trials that train at once: what is asked, promoted, stopped, repeated and
reported."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from launcher.dispatch.jobs import Job
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.runs.stored_run import StoredRun
from launcher.runs.trials import best_of
from launcher.search.search import Search
from support.toy_trials import Killed, ToyRunner, loss, search


def statuses(study: Search) -> Counter[str]:
    return Counter(trial.status for trial in study.trials)


def searched(outputs: Path, runner: Any = None, **settings: Any) -> Search:
    """Run a whole search of toys."""
    study = search(outputs, runner or ToyRunner(outputs), **settings)
    study.run()
    return study


def starts(study: Search) -> list[int]:
    runner: Any = study.runner
    return list(runner.starts)


@pytest.mark.parametrize(
    ("changed", "rungs", "steps"),
    [
        ({"pruner": "none"}, [], {90}),
        ({"pruner": "median"}, [], {90}),
        ({"reduction_factor": 2}, [10, 20, 30, 50], {50, 90}),
    ],
)
def test_trials_follow_a_pruner_that_changed(tmp_path, changed, rungs, steps):
    keys = {"sampler": "random", "n_trials": 5}
    first = searched(tmp_path, **keys, pruner="asha", min_steps=31, reduction_factor=4)
    assert (first.rungs, statuses(first)["paused"]) == ([40], 3)
    again = searched(tmp_path, **keys | {"pruner": "asha"} | changed)
    assert again.rungs == rungs
    assert {trial.step for trial in again.trials if trial.rejection is None} == steps
    assert (
        again.trials[0].step == StoredRun.read(tmp_path / str(again.trials[0].run)).record["step"]
    )


def test_a_new_trial_is_composed_once(tmp_path):
    study = search(tmp_path, ToyRunner(tmp_path), sampler="random", n_trials=3)
    compose = study.compose
    composed = []

    def count(overrides: list[str], number: int) -> Job:
        composed.append(number)
        return compose(overrides, number)

    study.compose = count
    study.run()
    assert composed == [0, 1, 2]


@pytest.mark.parametrize(("pruner", "most"), [("asha", 700), ("hyperband", 1200)])
def test_halving_trains_few_trials_to_the_end_and_finds_the_best(tmp_path, pruner, most):
    study = searched(tmp_path, sampler="random", n_trials=20, pruner=pruner)
    assert study.rungs == [10, 30]
    valid = [trial for trial in study.trials if trial.rejection is None]
    best = best_of(study.trials, study.settings)
    assert best is not None and best.step == 90
    assert best.params["x"] == min(
        (trial.params["x"] for trial in valid), key=lambda x: abs(x - 0.3)
    )
    assert sum(trial.step for trial in valid) < most < 90 * len(valid)
    count = len(starts(study))
    again = searched(tmp_path, sampler="random", n_trials=20, pruner=pruner)
    assert (count > len(valid), starts(again)) == (True, [])


def test_a_trial_whose_process_has_not_ended_yet_is_not_started_again(tmp_path):
    class Lingering(ToyRunner):
        """Processes end later than their runs."""

        looks = 0

        def start(self, number: int, config: Any) -> None:
            assert number not in self.codes, "it runs still"
            super().start(number, config)
            self.looks = 0

        def reap(self) -> dict[int, int]:
            self.looks += 1
            return super().reap() if self.looks > 3 else {}

    enqueue = [{"x": x} for x in (0.31, 0.5, 0.6)]
    keys = {"n_trials": 3, "parallel": 4, "pruner": "asha", "first": enqueue}
    study = searched(tmp_path, Lingering(tmp_path), **keys)
    assert [trial.step for trial in study.trials] == [90, 10, 10]


def test_more_trials_continue_a_study_and_promote_those_that_waited(tmp_path):
    enqueue = [{"x": x} for x in (0.31, 0.32, 0.33, 0.34, 0.5, 0.51, 0.52, 0.53, 0.54)]
    first = searched(tmp_path, n_trials=4, pruner="asha", first=enqueue)
    assert [trial.step for trial in first.trials] == [90, 10, 10, 10]
    assert "is the best of the highest rung, resumes" in "".join(first.lines)
    more = searched(tmp_path, n_trials=9, pruner="asha", first=enqueue)
    assert [trial.step for trial in more.trials] == [90, 30, 30, 10, 10, 10, 10, 10, 10]
    assert starts(more).count(0) == 0


def test_a_trial_below_the_others_is_stopped_until_there_is_no_pruner(tmp_path):
    stopped: list[int] = []

    class Slow(ToyRunner):
        """The last trial takes its time, with values that are bad from the start."""

        def reap(self) -> dict[int, int]:
            held = {
                number: code
                for number, code in self.codes.items()
                if number == 3 and number not in stopped
            }
            ended = {number: code for number, code in self.codes.items() if number not in held}
            self.codes = held
            return ended

        def stop(self, numbers: Any) -> None:
            stopped.extend(numbers)

    enqueue = [{"x": 0.31}, {"x": 0.32}, {"x": 0.33}, {"x": 0.8}]
    runner = Slow(tmp_path, breaks=lambda number, start: 143 if number == 3 else 0)
    keys = {"n_startup_trials": 2, "first": enqueue, "n_trials": 4}
    study = searched(tmp_path, runner, pruner="median", **keys)
    assert stopped == [3]
    assert (study.trials[3].pruned, study.trials[3].status) == (10, "pruned")
    again = searched(tmp_path, pruner="none", first=enqueue, n_trials=4)
    assert (starts(again), again.trials[3].step) == ([3], 90)


@pytest.mark.parametrize("saves", [False, True])
def test_a_trial_that_fails_resumes_only_where_it_has_a_checkpoint(tmp_path, saves):
    runner = ToyRunner(tmp_path, breaks=lambda number, start: start == 1, saves=saves)
    study = searched(tmp_path, runner, n_trials=1, first=[{"x": 0.1}], pruner="none")
    run = study.trials[0].run
    then, how = ("it resumes", "resumes at step 45") if saves else ("it starts again", "starts")
    again = f"trial 0: failed: a toy breaks; {then}"
    assert [line for line in study.lines if line.startswith(again)]
    assert f"trial 0: {how}: {run} x=0.1" in study.lines


def test_a_trial_whose_numbers_are_not_finite_is_not_started_again(tmp_path):
    error = "NonFiniteError: The gradient was not finite"
    runner = ToyRunner(tmp_path, breaks=lambda number, start: number == 0, reason=error)
    study = searched(tmp_path, runner, n_trials=2, max_failures=5)
    assert (runner.starts, study.trials[0].status) == ([0, 1], "failed")
    assert searched(tmp_path, n_trials=2, max_failures=5).trials[0].status == "failed"


def test_a_trial_that_fails_is_started_again_and_others_continue(tmp_path):
    runner = ToyRunner(
        tmp_path, breaks=lambda number, start: number == 1 or (number == 2 and start == 1)
    )
    study = searched(tmp_path, runner, n_trials=4, first=[{"x": x} for x in (0.1, 0.2, 0.3, 0.4)])
    assert runner.starts == [0, 1, 1, 2, 2, 3]
    assert [trial.status[0] for trial in study.trials] == [*"cfcc"]
    assert "trial 1: failed: a toy breaks; it starts again" in study.lines
    assert "trial 1: failed: a toy breaks" in study.lines


def test_a_trial_that_its_process_rejects_is_started_by_the_next_search(tmp_path):
    for code, status in ((2, "invalid"), (0, "completed")):
        runner = ToyRunner(tmp_path, breaks=lambda *_, code=code: code)
        assert statuses(searched(tmp_path, runner, n_trials=1)) == {status: 1}


@pytest.mark.parametrize(
    "code", [*(128 + each for each in signals.HANDLED), *(-each for each in signals.HANDLED)]
)
def test_a_trial_that_a_signal_stops_has_not_failed(tmp_path, code):
    """A negative code: the signal came while the trial's process was starting, as Ctrl-C may."""
    runner = ToyRunner(tmp_path, breaks=lambda number, start: code if start < 4 else 0)
    study = searched(tmp_path, runner, n_trials=1, first=[{"x": 0.2}])
    assert (runner.starts, study.trials[0].failures) == ([0] * 4, 0)
    assert statuses(study) == {"completed": 1}
    assert sum("was stopped by a signal at step" in line for line in study.lines) == 3


def test_a_value_that_is_not_finite_fails_its_trial_alone(tmp_path):
    for pruner in ("none", "asha"):
        folder = tmp_path / pruner
        runner = ToyRunner(folder, lambda x, step: "nan" if x > 0.5 else loss(x, step))
        enqueue = [{"x": 0.6}, {"x": 0.4}, {"x": 0.25}]
        study = searched(folder, runner, n_trials=3, pruner=pruner, first=enqueue)
        assert study.trials[0].status == "failed"
        assert runner.starts.count(0) == 1
        assert study.trials[2] is best_of(study.trials, study.settings)


def test_invalid_and_equal_trials_are_not_run(tmp_path):
    enqueue = [{"x": 0.95}, {"x": 0.5}, {"x": 0.5}]
    study = searched(tmp_path, n_trials=3, first=enqueue)
    assert starts(study) == [1]
    assert "trial 0: x=0.95: is invalid: x=0.95: is too large." in study.lines
    assert "trial 2: x=0.5: is trial 1 again" in study.lines
    assert study.trials[2].value == study.trials[1].value


def test_a_run_that_is_on_disk_is_not_run_again(tmp_path):
    searched(tmp_path, n_trials=1, first=[{"x": 0.5}])
    (tmp_path / "studies" / "toy").rename(tmp_path / "studies" / "other")
    study = searched(tmp_path, n_trials=1, first=[{"x": 0.5}], name="other")
    assert starts(study) == []
    assert "is completed already" in study.lines[0]


def test_an_objective_that_is_not_logged_ends_the_search(tmp_path):
    study = search(tmp_path, ToyRunner(tmp_path), n_trials=2)
    object.__setattr__(study.settings, "objective", "val/los")
    with pytest.raises(
        ConfigError, match=r"hpo.objective=val/los: is not logged; choose one of val/loss\."
    ):
        study.run()


class AbsentAtFirst(ToyRunner):
    """The objective is logged after an interruption, or never by some trials.

    Args:
        never: trials that never log it.
    """

    def __init__(self, outputs, never=()):
        super().__init__(outputs, breaks=lambda number, start: 143 if start == 1 else 0)
        self.never = never

    def start(self, number, config):
        super().start(number, config)
        if self.starts.count(number) == 1 or number in self.never:
            path = self.outputs / config.name / "metrics.jsonl"
            path.write_text(path.read_text().replace("val/loss", "val/other"))


def test_an_objective_that_is_absent_at_first_is_waited_for(tmp_path):
    study = search(tmp_path, AbsentAtFirst(tmp_path), n_trials=2)
    study.run()
    assert [trial.status for trial in study.trials] == ["completed"] * 2
    warnings = [line for line in study.lines if "is not logged so far" in line]
    assert warnings == ["hpo.objective=val/loss: is not logged so far; there are val/other"]


def test_a_trial_that_does_not_log_the_objective_fails_alone(tmp_path):
    study = search(tmp_path, AbsentAtFirst(tmp_path, never=(1,)), n_trials=3)
    study.run()
    assert [trial.status for trial in study.trials] == ["completed", "failed", "completed"]
    assert "trial 1: failed: val/loss was not logged" in study.lines


def test_a_study_whose_configuration_changed_is_rejected(tmp_path):
    with pytest.raises(Killed):
        search(tmp_path, ToyRunner(tmp_path, breaks=die), n_trials=1).run()
    study = search(tmp_path, ToyRunner(tmp_path), n_trials=1)
    study.trials[0].run = "toy/other"
    with pytest.raises(ConfigError, match="the configuration was changed while the study ran"):
        study.run()


def die(number: int, start: int) -> int:
    raise Killed


def test_a_trial_whose_run_is_trained_at_the_time_is_recorded_afterwards(tmp_path):
    """An equal trial is asked for while the first trains: its process writes the record."""
    enqueue, names = [{"x": 0.25}, {"x": 0.25}], []

    class Records(ToyRunner):
        def reap(self) -> dict[int, int]:
            path = tmp_path / str(study.trials[0].run) / "run.json" if study.trials else None
            if path is not None and path.exists():
                names.append([each["number"] for each in json.loads(path.read_text())["trials"]])
            return super().reap()

    study = search(tmp_path, Records(tmp_path), n_trials=2, parallel=2, first=enqueue)
    study.run()
    again = search(tmp_path, runner := ToyRunner(tmp_path), n_trials=2, first=enqueue)
    assert names[0] == [0] and [trial.number for trial in again.trials] == [0, 1]
    again.run()
    assert runner.starts == []
