"""State that its owner keeps in its own way is restored: a stop and a resume change nothing."""

import json
from pathlib import Path

import pytest

from support.runner import Outcome, final_state, launch, metrics, run_folder

SUPPORT = "support.own_state"
COMMON = (
    "data=digits",
    "model=supervised",
    f"model.module._target_={SUPPORT}.Net",
    "data.batch_size=32",
    "data.num_workers=0",
    "trainer.max_steps=8",
    "hooks.logging.interval=1",
    "hooks.evaluation.interval=3",
    "hooks.evaluation.max_samples=64",
    "hooks.checkpointing.interval=100",
    "device=cpu",
)
NORM, FROZEN = "+model.module.norm=true", "+model.module.frozen=true"
UNFREEZING = f"+hooks.unfreezing={{_target_:{SUPPORT}.Unfreezing,step:3}}"
AVERAGED = ("hooks=[default,ema]", "hooks.ema.decay=0.9")
TWO = "dispatch.nproc=2"


def optimizer(name: str, scheduler: str = "~scheduler") -> tuple[str, ...]:
    return "~optimizer", f"+optimizer={{_target_:{SUPPORT}.{name},lr:0.1}}", scheduler


CASES = {
    "observers, packed, unfreezing": (
        f"model.module._target_={SUPPORT}.Observed",
        *(FROZEN, UNFREEZING, *optimizer("Packed", "scheduler=cosine")),
    ),
    "schedule-free, unfreezing, norm, fsdp": (
        *("strategy=fsdp", TWO, FROZEN, UNFREEZING, NORM, *AVERAGED),
        *optimizer("ScheduleFree"),
    ),
}


def trained(outputs: Path, *overrides: str) -> Outcome:
    outcome = launch(outputs, *COMMON, *overrides)
    assert outcome.returncode == 0, outcome.output
    return outcome


@pytest.mark.parametrize("case", CASES)
def test_a_resume_changes_nothing(tmp_path, case):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    warnings = trained(whole, *CASES[case]).output
    trained(parts, *CASES[case], "trainer.pause_at=5")
    trained(parts, *CASES[case])
    assert metrics(parts) == metrics(whole)
    assert final_state(parts) == final_state(whole)
    assert "cannot be resumed" not in warnings
    # Another process computes the metrics that training has logged.
    if "norm" in case:
        trained(whole, *CASES[case], "job=evaluate")
        (line,) = (run_folder(whole) / "evaluations.jsonl").read_text().splitlines()
        logged = next(row for row in reversed(metrics(whole)) if "val/loss" in row)
        assert json.loads(line)["val/loss"] == logged["val/loss"]


REJECTED = {
    "a state_dict() of its own, sharded": (
        ("strategy=fsdp", *optimizer("Packed")),
        "optimizer=Packed: has a state_dict() or load_state_dict() of its own",
    ),
    "sharded state under a name": (
        ("strategy=fsdp", *optimizer("ByName")),
        "/tree/sums/0 has shards on several ranks",
    ),
    "schedule-free, and the test set on the best weights": (
        (
            *optimizer("ScheduleFree"),
            "hooks.evaluation.test=best",
            "data=custom",
            "data.dataset={_target_: support.drawing.samples}",
            "data.test_dataset={_target_: support.drawing.samples}",
        ),
        "hooks.evaluation.test=best: ScheduleFree evaluates weights of its own",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_what_cannot_be_stored_is_rejected_in_the_first_step(tmp_path, case):
    overrides, sentence = REJECTED[case]
    outcome = launch(tmp_path, *COMMON, *overrides)
    assert outcome.returncode == 2 and sentence in outcome.output, outcome.output
    assert "Traceback" not in outcome.output and "Step      2" not in outcome.output
