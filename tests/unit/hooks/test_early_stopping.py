import math
from typing import Any

import pytest

from launcher import CheckpointingHook, EarlyStoppingHook, FunctionHook
from launcher.hooks.view import RunContext
from support.toy import Toy, Values

LOSSES = {
    step: {"loss": loss} for step, loss in enumerate([1.0, 0.5, 0.7, 0.6, 0.55, 0.5, 0.4, 0.3], 1)
}


@pytest.mark.parametrize("pauses", [[], [1, 2, 4]])
def test_early_stopping_stops_at_the_same_step_however_often_it_is_resumed(tmp_path, pauses):
    """The best at step 2, then three without a gain; the counts and the best survive a resume."""
    for max_steps in [*pauses, 7]:
        trainer = Toy(
            [Values(LOSSES), EarlyStoppingHook(patience=3), CheckpointingHook(9)],
            max_steps,
            tmp_path,
        )
        trainer.train()
    assert trainer.step == 5
    assert "0.5 (step 2)" in str(trainer.state.stop_reason)


@pytest.mark.parametrize(
    ("patience", "max_steps", "end"), [(None, 8, 8), (5, 7, 7), (3, 8, 5), (4, 7, 6)]
)
def test_a_run_that_stopped_early_trains_on_where_early_stopping_allows_it(
    tmp_path, patience, max_steps, end
):
    def trainer(patience: int | None, max_steps: int) -> Toy:
        stopping = [] if patience is None else [EarlyStoppingHook(patience=patience)]
        return Toy([Values(LOSSES), *stopping, CheckpointingHook(9)], max_steps, tmp_path)

    first = trainer(3, 7)
    first.train()
    assert first.step == 5
    second = trainer(patience, max_steps)
    second.train()
    assert second.step == end
    assert (second.state.stop_reason is None) == (end == max_steps)


def stop_at_3(trainer: Any) -> None:
    if trainer.step == 3:
        trainer.state.stop("enough")


@pytest.mark.parametrize(("changed", "end"), [(False, 3), (True, 6)])
def test_the_reason_of_another_hook_holds_for_the_same_configuration(tmp_path, changed, end):
    def trained(config: str, max_steps: int = 6) -> Toy:
        hooks = [FunctionHook(on_after_step=stop_at_3)] if config == "seed: 1\n" else []
        trainer = Toy([*hooks, CheckpointingHook(9)], max_steps, tmp_path)
        trainer.context = RunContext(texts={"config.yaml": config})
        trainer.train()
        return trainer

    assert trained("seed: 1\n").step == 3
    assert trained("seed: 2\n" if changed else "seed: 1\n").step == end
    assert trained("seed: 2\n" if changed else "seed: 1\n", max_steps=7).step == 7  # extended


@pytest.mark.parametrize("first", [0, 2])
def test_a_metric_that_is_not_finite_at_first_is_waited_for(tmp_path, first):
    """Patience counts from the first finite value, and nothing ends before the first step."""
    values = {step: {"auc": 0.5 if step >= first else math.nan} for step in range(6)}

    class AtStart(Values):
        def on_ready(self, trainer: Any) -> None:
            trainer.log({"val": {"auc": math.nan}})

    stopping = EarlyStoppingHook(patience=2, metric="val/auc")
    trainer = Toy([AtStart(values), stopping], 9, tmp_path)
    trainer.train()
    assert trainer.step == max(first, 1) + 2
