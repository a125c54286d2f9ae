"""job=resume_check as a user starts it: exit codes, ranks, and that no run is touched."""

from importlib.util import find_spec

import pytest

from support.runner import launch

DIGITS = ("model=mlp", "data=digits", "device=cpu", "trainer.max_steps=20", "job=resume_check")


def test_two_ranks_resume_with_equal_bits(tmp_path):
    words = ("strategy=fsdp", "dispatch.nproc=2", "job.steps=2")
    done = launch(tmp_path / "outputs", *DIGITS, *words, f"job.scratch={tmp_path}", code=0)
    text = "Bitwise identical after SIGTERM at step 2 and a resume: 24 tensors, 5 lines"
    assert text in done.output
    assert not list(tmp_path.rglob("*"))


@pytest.mark.skipif(find_spec("torchao") is None, reason="needs the extra fp8")
def test_a_run_in_fp8_resumes_with_equal_bits(tmp_path):
    words = ["model=gpt", "model.num_layers=1", "data=synthetic", "data.seq_len=16"]
    words += ["data.batch_size=4", "precision=fp8", "precision.emulate=true", "tracker=[]"]
    words += ["model.logits_chunk=20", "hooks=[default,ema]", "job=resume_check", "job.steps=2"]
    done = launch(tmp_path / "outputs", *words)
    assert done.returncode == 0 and "Bitwise identical" in done.output, done.output


def test_a_hook_without_state_is_named(tmp_path):
    words = ("+hooks.warmup._target_=support.forgetful.Warmup", "job.steps=2")
    done = launch(tmp_path / "outputs", *DIGITS, *words, code=1)
    assert "The first difference: the gradients of step 3 on rank 0, after the stop" in done.output
    assert "Not restored: hooks.warmup.count is 0 instead of 2." in done.output
    assert "Traceback" not in done.output and not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["job.steps=11"], "job.steps=11: trains 22 steps"),
        (["hooks=[logging]"], "job=resume_check: hooks has no checkpointing"),
        (["job.scratch=/dev/null/x"], "job=resume_check: /dev/null/x cannot be used"),
    ],
)
def test_a_run_that_cannot_be_checked_is_rejected(tmp_path, words, message):
    done = launch(tmp_path / "outputs", *DIGITS, *words)
    assert done.returncode == 2 and message in done.output, done.output
    assert "Traceback" not in done.output and not list(tmp_path.rglob("*"))
