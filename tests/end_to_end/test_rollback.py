"""A run that is rolled back, and started again, ends as one that was never rolled back."""

from support import python
from support.runner import final_state, launch, metrics, record, steps

COMMAND = (
    *("model=mlp", "data=digits", "model.dropout=0.1", "trainer.max_steps=20", "device=cpu"),
    *("hooks.checkpointing.interval=5", "hooks.checkpointing.keep_previous=9"),
    *("hooks.evaluation.interval=4", "hooks.logging.interval=1"),
    *("data.batch_size=60", "strategy=fsdp", "dispatch.nproc=2"),
)


def test_a_rolled_back_run_ends_bit_exact(tmp_path):
    launch(tmp_path, *COMMAND, code=0)
    expected, lines, best = final_state(tmp_path), metrics(tmp_path), record(tmp_path)["best"]
    for step in (15, 5):
        words = ("rollback", "mlp-digits", str(step), "--outputs", str(tmp_path))
        python.run("-m", "launcher.runs", *words, check=True)
        assert max(steps(tmp_path)) == step
        kept = [line for line in lines if line["step"] <= step]
        assert metrics(tmp_path) == kept
    assert "Resuming from" in launch(tmp_path, *COMMAND, code=0).output
    assert [attempt["start_step"] for attempt in record(tmp_path)["attempts"]] == [0, 5]
    assert final_state(tmp_path) == expected
    assert metrics(tmp_path) == lines and record(tmp_path)["best"] == best
