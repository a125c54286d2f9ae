"""State that its owner keeps in its own way is restored: a stop and a resume change nothing."""

import json
from pathlib import Path

import pytest

from support.ranks import together
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
UNFREEZING = (
    "+model.module.frozen=true",
    f"+hooks.unfreezing={{_target_:{SUPPORT}.Unfreezing,step:3}}",
)


def optimizer(name: str) -> tuple[str, ...]:
    return "~optimizer", f"+optimizer={{_target_:{SUPPORT}.{name},lr:0.1}}", "scheduler=constant"


def trained(outputs: Path, *overrides: str) -> Outcome:
    outcome = launch(outputs, *COMMON, *overrides, code=0)
    return outcome


def test_a_resume_changes_nothing(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    observed = f"model.module._target_={SUPPORT}.Observed"
    case = (observed, *UNFREEZING, *optimizer("ScheduleFree"))
    warnings = trained(whole, *case).output
    trained(parts, *case, "trainer.pause_at=5")
    trained(parts, *case)
    assert metrics(parts) == metrics(whole)
    assert final_state(parts) == final_state(whole)
    assert "cannot be resumed" not in warnings
    # Another process computes the metrics that training has logged.
    trained(whole, *case, "job=evaluate")
    (line,) = (run_folder(whole) / "evaluations.jsonl").read_text().splitlines()
    logged = next(row for row in reversed(metrics(whole)) if "val/loss" in row)
    assert json.loads(line)["val/loss"] == logged["val/loss"]


SHARDED = (
    "digits", "strategy=fsdp", "hooks=[logging,evaluation,checkpointing,ema]",
    "hooks.ema.decay=0.9", "hooks.evaluation.interval=2", "hooks.evaluation.max_samples=64",
)  # fmt: skip
CASES = {
    "schedule-free, unfreezing, norm": (
        *("model=supervised", f"model.module._target_={SUPPORT}.Net", "+model.module.norm=true"),
        *(*UNFREEZING, *optimizer("ScheduleFree")),
    ),
    "drawing": ("model._target_=support.drawing.Drawing", "scheduler=plateau"),
}
SIGNAL = "{_target_:support.interrupter.Interrupter,step:4,moment:evaluation,group:false}"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """Trainings of two ranks, by case: a whole one, and the two parts of another."""
    folder, tasks = tmp_path_factory.mktemp("sharded"), []
    for case, overrides in CASES.items():
        for name, more in (("whole", []), ("parts", [f"+hooks.signal={SIGNAL}"]), ("parts", [])):
            arguments = {"folder": str(folder / case / name)}
            tasks.append(("train", arguments | {"overrides": [*SHARDED, *overrides, *more]}))
    results = together(2, folder, tasks)
    return {case: results[3 * number :][:3] for number, case in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES)
def test_a_signal_in_an_evaluation_changes_nothing(sharded, case):
    for whole, first, second in zip(*sharded[case], strict=True):
        assert (first["step"], first["stopped"]) == (4, 15)
        assert first["losses"] + second["losses"] == whole["losses"]
        assert first["rates"] + second["rates"] == whole["rates"]
        assert second["digest"] == whole["digest"]


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
