"""Updates that are left out."""

from typing import Any

import pytest
import torch

from launcher import CheckpointingHook, FunctionHook
from launcher.errors import ConfigError
from launcher.hooks.skip_spikes import SkipSpikesHook
from support.toy import BAD, GOOD, Recorder, Toy

BIG = GOOD * 100


class Steps:
    """The weights after each step, and the rate it was made with."""

    def __init__(self) -> None:
        self.weights: list[Any] = []
        self.rates: list[float] = []

    def hook(self) -> FunctionHook:
        def note(trainer: Any) -> None:
            self.weights.append([p.tolist() for p in trainer.model.parameters()])
            self.rates.append(trainer.step_info["lr"][0])

        return FunctionHook(on_after_step=note)

    def unchanged(self) -> list[int]:
        pairs = zip(self.weights, self.weights[1:], strict=False)
        return [step for step, (before, after) in enumerate(pairs, 2) if before == after]


class Slow(Toy):
    """Training without dropout, under a low constant rate, so that the loss hardly moves."""

    def build_model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))

    def build_lr_scheduler(self) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.01 * 0.9**step)


def spiky(*at: int) -> list[torch.Tensor]:
    return [BIG if step in at else GOOD for step in range(1, 13)]


@pytest.mark.parametrize("judged", ["loss", "grad_norm"])
def test_a_spike_is_skipped_counted_and_logged(tmp_path, judged, caplog):
    steps, logged = Steps(), Recorder()
    only = {"loss": judged == "loss", "grad_norm": judged == "grad_norm"}
    hook = SkipSpikesHook(window=8, warmup=4, interval=5, **only)
    trainer = Slow([hook, steps.hook(), logged], 12, tmp_path, spiky(7, 9))
    trainer.train()
    assert steps.unchanged() == [7, 9]
    assert steps.rates == pytest.approx([0.001 * 0.9**step for step in range(12)]), (
        "the schedule continues"
    )
    assert [(step, records["spikes"]["skipped"]) for step, records in logged.records] == [
        (5, 0),
        (10, 2),
        (12, 2),
    ]
    assert "spikes of loss or gradient: 2 since the last report, 2 in all" in caplog.text
    assert "the last at step 9" in caplog.text
    assert trainer.state.skipped_steps == 0, "these are the updates that are not finite"


CASES = {
    "the first steps are not judged": (spiky(4)[:5], []),
    "a new level is accepted": ([GOOD] * 6 + [BIG] * 6, [7, 8]),
    "a state whose last update is a spike is saved": (spiky(7)[:7], [7]),
    "a loss that is not finite is not a spike": ([GOOD] * 6 + [BAD, GOOD, BIG, GOOD], [7, 9]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_updates_that_are_skipped(tmp_path, case):
    batches, skipped = CASES[case]
    steps, hook = Steps(), SkipSpikesHook(window=8, warmup=4, max_in_row=2)
    hooks = [hook, CheckpointingHook(100), steps.hook()]
    trainer = Slow(hooks, len(batches), tmp_path, batches)
    trainer.train()
    assert steps.unchanged() == skipped
    assert trainer.state.skipped_steps == sum(batch is BAD for batch in batches)
    assert (tmp_path / "checkpoints" / f"step-{len(batches):08d}").exists()


def test_the_window_survives_a_restart(tmp_path):
    data = torch.utils.data.DataLoader(torch.stack(spiky(7)), batch_size=None)
    for last in (6, 12):
        steps = Steps()
        hooks = [CheckpointingHook(100), SkipSpikesHook(window=8, warmup=4), steps.hook()]
        Slow(hooks, last, tmp_path / "parts", data).train()
    whole = Steps()
    Slow([SkipSpikesHook(window=8, warmup=4), whole.hook()], 12, tmp_path, data).train()
    assert whole.unchanged() == [7]
    assert steps.weights == whole.weights[6:]


def test_what_cannot_be_judged_is_rejected(tmp_path):
    for settings in ({"window": 4, "warmup": 5}, {"loss": False, "grad_norm": False}):
        with pytest.raises(ConfigError, match=r"hooks\.skip_spikes"):
            SkipSpikesHook(**settings)
    with pytest.raises(ConfigError, match="another hook decides on updates"):
        Toy([SkipSpikesHook(), SkipSpikesHook()], 1, tmp_path).train()
