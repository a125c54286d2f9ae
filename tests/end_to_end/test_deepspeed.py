"""DeepSpeed as a user runs it: stopped by a signal, resumed, evaluated, exported, started from; and
rejected."""

import json
import re
import signal
from importlib.util import find_spec
from shlex import split

import pytest

from support.processes import Command
from support.runner import final_state, launch, metrics, run_folder

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed")

TINY = split(
    "strategy=deepspeed data=synthetic data.seq_len=16 data.num_val_samples=11 model.dim=16"
    " model.num_layers=1 model.num_heads=2 data.batch_size=8 device=cpu trainer.max_steps=8"
    " hooks.logging.interval=3 hooks.checkpointing.best_metric=null"
)
PAIR = (*TINY, "strategy.zero_stage=3", "dispatch.nproc=2", "model.dropout=0.1")
STOP = (
    "+tracker.interrupter={_target_:support.interrupter.Interrupter,"
    "step:4,moment:optimizer,group:false}"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def whole(root):
    """The outputs of a run that nothing has stopped."""
    with Command(f"paths.outputs={root / 'whole'}", *PAIR) as command:
        assert command.wait() == 0, command.output
    return root / "whole"


def test_an_interruption_leaves_no_trace(root, whole):
    outputs = root / "parts"
    with Command(f"paths.outputs={outputs}", *PAIR, STOP) as command:
        assert command.wait() == 128 + signal.SIGTERM, command.output
    rejected = launch(outputs, *TINY, f"run.id={run_folder(outputs).name}", "strategy=none")
    assert rejected.returncode == 2
    assert "was written by strategy=deepspeed (deepspeed)" in rejected.output
    assert "run.init_from=<model.safetensors>" in rejected.output
    with Command(f"paths.outputs={outputs}", *PAIR) as command:
        assert command.wait() == 0, command.output
    assert final_state(outputs) == final_state(whole)
    assert metrics(outputs) == metrics(whole)
    for file in ("shard-00001.safetensors", "rank-00001.safetensors"):
        ends = [run_folder(of) / "checkpoints" / "latest" / file for of in (outputs, whole)]
        assert ends[0].read_bytes() == ends[1].read_bytes()


def test_checkpoint_of_deepspeed_can_be_evaluated_exported_and_loaded(root, whole):
    for job in ("evaluate", "export"):
        with Command(f"paths.outputs={whole}", *PAIR, f"job={job}") as command:
            assert command.wait() == 0, command.output
    line = json.loads((run_folder(whole) / "evaluations.jsonl").read_text())
    assert line["val/loss"] == pytest.approx(metrics(whole)[-1]["val/loss"], rel=1e-6)
    for source in (run_folder(whole), run_folder(whole) / "export" / "model.safetensors"):
        outputs = root / f"from {source.suffix or 'run'}"
        words = ("strategy=none", f"run.init_from={source}", "trainer.max_steps=1")
        started = launch(outputs, *TINY, *words)
        assert started.returncode == 0, started.output
        assert re.search(r"Weights from .*: (\d+) of \1\.", started.output)


def test_without_the_package(tmp_path):
    rejected = launch(tmp_path / "outputs", *TINY, module="support.without_deepspeed", real=True)
    assert rejected.returncode == 2
    assert rejected.output.startswith("strategy=deepspeed: needs the package deepspeed")
    assert not (tmp_path / "outputs").exists()


def test_file_with_keys_of_launcher_is_rejected(tmp_path):
    (tmp_path / "ds.json").write_text(
        '{"train_batch_size": 4, "fp16": {"enabled": true}, "scheduler": {"type": "X"}}'
    )
    rejected = launch(tmp_path / "outputs", *TINY, f"strategy.config_file={tmp_path / 'ds.json'}")
    assert rejected.returncode == 2, rejected.output
    named = [line.split(": ")[1].split(" ")[0] for line in rejected.output.splitlines()]
    assert named == ["train_batch_size", "scheduler", "fp16.enabled"]
    assert not (tmp_path / "outputs").exists()


def test_hooks_that_need_the_tensors_are_rejected(tmp_path):
    hooks = ("ema", "gradients", "skip_spikes", "nan_report")
    done = launch(tmp_path, *TINY, f"hooks=[default,{','.join(hooks)}]")
    assert done.returncode == 2, done.output
    for hook in hooks:
        assert f"hooks.{hook}: strategy=deepspeed keeps" in done.output
    assert not list(tmp_path.rglob("run.json"))
