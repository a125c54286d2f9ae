"""A run that is rolled back, and started again, ends as one that was never rolled back."""

from pathlib import Path

from support import python
from support.runner import final_state, launch, metrics, record, run_folder, steps, stop_at

COMMAND = (
    *("model=mlp", "data=digits", "model.dropout=0.1", "trainer.max_steps=20", "device=cpu"),
    *("hooks.checkpointing.interval=5", "hooks.checkpointing.keep_previous=9"),
    *("hooks.evaluation.interval=4", "hooks.logging.interval=1"),
    "data.batch_size=60",
)


def roll_back(outputs: Path, step: str) -> None:
    words = ("rollback", "mlp-digits", step, "--outputs", str(outputs))
    python.run("-m", "launcher.runs", *words, check=True)


def test_a_rolled_back_run_ends_bit_exact(tmp_path):
    command = (*COMMAND, "strategy=fsdp", "dispatch.nproc=2")
    launch(tmp_path, *command, code=0)
    expected, lines, best = final_state(tmp_path), metrics(tmp_path), record(tmp_path)["best"]
    for step in (15, 5):
        roll_back(tmp_path, str(step))
        assert max(steps(tmp_path)) == step
        kept = [line for line in lines if line["step"] <= step]
        assert metrics(tmp_path) == kept
    again = launch(tmp_path, *command)
    assert again.returncode == 0 and "Resuming from" in again.output, again.output
    assert [attempt["start_step"] for attempt in record(tmp_path)["attempts"]] == [0, 5]
    assert final_state(tmp_path) == expected
    assert metrics(tmp_path) == lines and record(tmp_path)["best"] == best


def test_a_killed_run_is_rolled_back(tmp_path):
    durable = "hooks.checkpointing.asynchronous=false"
    killed = launch(tmp_path, *COMMAND, durable, *stop_at(13, signum="SIGKILL"))
    assert killed.returncode < 0, killed.output
    roll_back(tmp_path, "5")
    assert record(tmp_path)["state"] == "failed" and record(tmp_path)["step"] == 5
    launch(tmp_path, *COMMAND, code=0)
    assert record(tmp_path)["attempts"][-1]["start_step"] == 5
    assert run_folder(tmp_path).joinpath("abandoned-metrics.jsonl").is_file()
