"""The end of a run: the test set is evaluated, and the weights are exported."""

import json
from pathlib import Path
from shlex import split

import pytest
from safetensors.torch import load_file

from launcher.checkpoint.stored import StoredCheckpoint
from support import python
from support.runner import ENVIRONMENT, final_state, launch, metrics, record, run_folder, steps

POINTS = "support.modules.Points"
COMMAND = split(
    "model=supervised model.loss=mse model.module._target_=torch.nn.Linear"
    " model.module.in_features=1 model.module.out_features=1 optimizer.lr=1 device=cpu"
    f" data=custom data.dataset._target_={POINTS} data.dataset.size=64 data.batch_size=4"
    f" data.val_dataset={{_target_:{POINTS},size:4}} data.num_workers=0"
    " hooks.evaluation.interval=3 trainer.max_steps=12"
)
"""The best checkpoint is not the last one."""
TEST_SET = f"data.test_dataset={{_target_: {POINTS}, size: 6}}"


def evaluated(folder: Path, *words: str) -> float:
    command = ("evaluate", str(folder), "job.split=test", "--trust", *words)
    done = python.run("-m", "launcher.runs", *command, env=ENVIRONMENT, check=True)
    value: float = json.loads(done.stdout.splitlines()[-1])["test/loss"]
    return value


def test_an_interrupted_evaluation_of_the_test_set_is_repeated(tmp_path):
    """The run is killed in it, and then a signal comes to one of its ranks."""
    trap = tmp_path / "trap"
    words = (
        *COMMAND,
        "hooks=[default,ema]",
        "hooks.ema.decay=0.5",
        "hooks.ema.evaluate=true",
        "hooks.evaluation.test=best",
        f"data.test_dataset={{_target_: support.trap.Trap, size: 6, file: {trap}}}",
        "strategy=fsdp",
        "dispatch.nproc=2",
    )
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    launch(whole, *words, code=0)
    for name in ("SIGKILL", "SIGTERM"):
        trap.write_text(name)
        done = launch(stopped, *words)
        assert done.returncode != 0 and not trap.exists(), done.output
        assert steps(stopped)[-1] == 12 and record(stopped)["state"] != "completed"
        assert not any("test/loss" in row for row in metrics(stopped))
    assert (done.returncode, record(stopped)["state"]) == (143, "preempted")
    done = launch(stopped, *words)
    assert done.returncode == 0 and "test/loss" in done.output, done.output
    assert metrics(stopped) == metrics(whole)
    assert [row["step"] for row in metrics(stopped) if "test/loss" in row] == [12]
    assert record(stopped)["best"]["step"] < 12 and final_state(stopped) == final_state(whole)
    value = evaluated(
        run_folder(stopped), "job.checkpoint=best", "job.weights=ema", "dispatch.nproc=2"
    )
    assert metrics(stopped)[-1]["test/loss"] == value


def test_a_completed_run_gets_what_a_command_adds(tmp_path):
    added = ("hooks=[default,export]", "hooks.export.checkpoint=best", "hooks.evaluation.test=last")
    paused = launch(tmp_path, *COMMAND, TEST_SET, *added, "trainer.pause_at=6")
    folder = run_folder(tmp_path)
    assert paused.returncode == 0 and not (folder / "export").exists(), paused.output
    launch(tmp_path, *COMMAND, code=0)
    assert "test/loss" not in metrics(tmp_path)[-1], "it does not belong to the run's id"
    launch(tmp_path, *COMMAND, TEST_SET, *added, code=0)
    assert metrics(tmp_path)[-1]["test/loss"] == evaluated(folder)
    exported = load_file(folder / "export" / "model.safetensors")
    stored = StoredCheckpoint(folder / "checkpoints" / "best")
    assert stored.manifest.step < 12 and exported
    assert all((stored.read(f"model/{name}") == exported[name]).all() for name in exported)
    for words in ((*COMMAND, TEST_SET, *added), COMMAND):
        again = launch(tmp_path, *words)
        assert "is complete already (step 12): nothing to do" in again.output, again.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hooks.evaluation.test=last"], "hooks.evaluation.test=last: the data have no test set"),
        (
            [TEST_SET, "hooks.evaluation.test=best", "hooks.checkpointing.best_metric=null"],
            "hooks.evaluation.test=best: hooks.checkpointing.best_metric=null",
        ),
    ],
)
def test_what_cannot_be_done_at_the_end_is_rejected_at_the_start(words, message, tmp_path):
    rejected = launch(tmp_path, *COMMAND, *words)
    assert rejected.returncode == 2 and message in rejected.output, rejected.output
    assert not list(tmp_path.iterdir())
