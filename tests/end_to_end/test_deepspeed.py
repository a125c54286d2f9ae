"""DeepSpeed as a user runs it: stopped by a signal, resumed, evaluated, exported, started from; and
rejected."""

import json
import re
import signal
from importlib.util import find_spec
from pathlib import Path
from shlex import split

import pytest

from support import python
from support.runner import ENVIRONMENT, final_state, launch, metrics, run_folder

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


def end(outputs: Path, *overrides: str, code: int = 0) -> str:
    done = launch(outputs, *overrides, code=code)
    return done.output


@pytest.fixture(scope="module")
def whole(root):
    """The outputs of a run that nothing has stopped."""
    end(root / "whole", *PAIR)
    return root / "whole"


def test_an_interruption_leaves_no_trace(root, whole):
    outputs = root / "parts"
    end(outputs, *PAIR, STOP, code=128 + signal.SIGTERM)
    rejected = end(outputs, *TINY, f"run.id={run_folder(outputs).name}", "strategy=none", code=2)
    assert "was written by strategy=deepspeed (deepspeed)" in rejected
    assert "run.init_from=<model.safetensors>" in rejected
    end(outputs, *PAIR)
    assert final_state(outputs) == final_state(whole)
    assert metrics(outputs) == metrics(whole)
    for file in ("shard-00001.safetensors", "rank-00001.safetensors"):
        ends = [run_folder(of) / "checkpoints" / "latest" / file for of in (outputs, whole)]
        assert ends[0].read_bytes() == ends[1].read_bytes()


def test_checkpoint_of_deepspeed_can_be_evaluated_exported_and_loaded(root, whole):
    for job in ("evaluate", "export"):
        end(whole, *PAIR, f"job={job}")
    line = json.loads((run_folder(whole) / "evaluations.jsonl").read_text())
    assert line["val/loss"] == pytest.approx(metrics(whole)[-1]["val/loss"], rel=1e-6)
    for source in (run_folder(whole), run_folder(whole) / "export" / "model.safetensors"):
        outputs = root / f"from {source.suffix or 'run'}"
        words = ("strategy=none", f"run.init_from={source}", "trainer.max_steps=1")
        assert re.search(r"Weights from .*: (\d+) of \1\.", end(outputs, *TINY, *words))


def test_without_the_package(tmp_path):
    words = (f"paths.outputs={tmp_path / 'outputs'}", *TINY)
    rejected = python.run("-m", "support.without_deepspeed", *words, env=ENVIRONMENT)
    assert rejected.returncode == 2
    assert rejected.stderr.startswith("strategy=deepspeed: needs the package deepspeed")
    assert not (tmp_path / "outputs").exists()


def test_file_with_keys_of_launcher_is_rejected(tmp_path):
    (tmp_path / "ds.json").write_text(
        '{"train_batch_size": 4, "fp16": {"enabled": true}, "scheduler": {"type": "X"}}'
    )
    words = (*TINY, f"strategy.config_file={tmp_path / 'ds.json'}")
    lines = end(tmp_path / "outputs", *words, code=2).splitlines()
    named = [line.split(": ")[1].split(" ")[0] for line in lines]
    assert named == ["train_batch_size", "scheduler", "fp16.enabled"]
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("hook", ["ema", "gradients", "skip_spikes", "nan_report"])
def test_hooks_that_need_the_tensors_are_rejected(tmp_path, hook):
    rejected = end(tmp_path, *TINY, f"hooks=[default,{hook}]", code=2)
    assert f"hooks.{hook}: strategy=deepspeed keeps" in rejected
    assert not list(tmp_path.rglob("run.json"))
