"""Values that only some trials have."""

from pathlib import Path

import pytest

from launcher.errors import ConfigError
from launcher.search.conditional import function_of, suggest
from support.toy_trials import ToyRunner, search

FUNCTION = "support.toy_trials.suggest_y"


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "nsgaii"])
def test_a_study_that_is_killed_at_any_start_asks_the_same_trials(
    tmp_path: Path, sampler: str
) -> None:
    """The ranges that the function gave are part of what the study is rebuilt from."""
    keys = {"space_function": FUNCTION, "sampler": sampler, "seed": 1}
    if sampler == "tpe":
        keys["sampler_options"] = {"n_startup_trials": 3}
    whole = search(tmp_path / "whole", ToyRunner(tmp_path / "whole"), n_trials=9, **keys)
    whole.run()
    for number in (1, 4, 5, 8, 9):
        parts = search(tmp_path / "parts", ToyRunner(tmp_path / "parts"), n_trials=number, **keys)
        parts.run()
    assert [trial.params for trial in parts.trials] == [trial.params for trial in whole.trials]
    with_y = [trial for trial in parts.trials if "y" in trial.params]
    valid = [trial for trial in parts.trials if trial.refusal is None]
    assert [trial for trial in valid if trial.params["x"] > 0.4] == [
        trial for trial in with_y if trial in valid
    ]
    assert 0 < len(with_y) < 9
    assert all(parts.overrides(trial.params)[-1] == f"y={trial.params['y']}" for trial in with_y)


def test_first_trials_may_have_values_of_the_function(tmp_path: Path) -> None:
    enqueue = [{"x": 0.5, "y": 1.25}, {"x": 0.1}]
    study = search(
        tmp_path, ToyRunner(tmp_path), n_trials=2, space_function=FUNCTION, enqueue=enqueue
    )
    study.run()
    assert [trial.params for trial in study.trials] == enqueue


def test_a_function_that_fails_is_a_sentence() -> None:
    for path in ("no.such", "such", "math.such"):
        with pytest.raises(
            ConfigError, match=rf"hpo.space_function={path}: cannot be imported \(.+\); e\.g\."
        ):
            function_of(path)
    with pytest.raises(
        ConfigError, match=r"hpo.space_function=builtins.divmod: TypeError: unsupported operand"
    ):
        suggest("builtins.divmod", {}, None)  # type: ignore[arg-type]
