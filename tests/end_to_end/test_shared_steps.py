"""`run.share_prefix`: what two runs have in common is trained once, and ends with the same bits."""

import importlib
import json
import os
import pkgutil
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from shlex import split
from typing import Any

import pytest

import launcher.hooks
from launcher.checkpoint.durable_files import write_json
from launcher.checkpoint.manifest import Manifest
from launcher.rundir.folder import checkpoint_steps
from support import python, runner
from support.waiting import wait_for

SHORT = split(
    "model=mlp model.hidden_dim=16 model.dropout=0.1 data.batch_size=32 optimizer.lr=0.01"
    " trainer.max_steps=20 hooks.logging.interval=3 hooks.evaluation.interval=4"
    " hooks.evaluation.max_samples=64 hooks.checkpointing.interval=4"
    " hooks.checkpointing.keep_interval=4"
)
DEFAULT = ("data=digits", "scheduler=wsd", "scheduler.warmup_steps=3")
DIGITS_ALONE = ("data=digits", "scheduler=constant")
DIGITS = "{_target_:launcher.data.digits.DigitsData,weight:1}"
MIXTURE = (
    *DEFAULT,
    *split("data=mixture data.num_features=64 data.num_classes=10 data.exhausted=renormalise"),
    f"data.sources={{a:{DIGITS},b:{DIGITS}}}",
)
PLATEAU = (
    *DIGITS_ALONE,
    "scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau",
    *split("+scheduler.metric=val/loss +scheduler.threshold=0.2"),
)
ONE_CYCLE = (
    *DIGITS_ALONE,
    "scheduler._target_=torch.optim.lr_scheduler.OneCycleLR",
    *split("+scheduler.max_lr=0.01 +scheduler.total_steps=20"),
)
NARROW = (*DEFAULT, "precision=fp16", "trainer.micro_batch_size=8")
LANES = (*DEFAULT, "trainer.lanes=2")


def of_torch(name: str, *arguments: str) -> tuple[str, ...]:
    """Return a schedule of torch with its arguments."""
    target = f"scheduler._target_=torch.optim.lr_scheduler.{name}"
    return (*DIGITS_ALONE, target, *(f"+scheduler.{argument}" for argument in arguments))


EMA = (*DEFAULT, "hooks=[default,ema]", "hooks.ema.interval=7")
STOPPING = "hooks=[default,early_stopping]"
PATIENT = (*DEFAULT, STOPPING, "hooks.early_stopping.patience=2")
EPOCHS = (*DIGITS_ALONE, "trainer.max_steps=null", "data.batch_size=256")
STAGES = "data.stages=[{{at:200,weights:{{a:3}}}},{{at:{},weights:{{b:{}}}}}]"
OBSERVING = ("progress", "watchdog", "export", "profiler", "nan_report", "checkpointing")
ALL_OBSERVING = (
    "hooks=[default,watchdog,export,profiler,nan_report] hooks.progress.interval=2"
    " hooks.checkpointing.interval=3"
)
MATTERS = {
    "scheduler.*": [
        (DEFAULT, "", "scheduler.decay_ratio=0.4", 12),
        (DEFAULT, "scheduler=constant_with_warmup", "scheduler=wsd", 16),
        (PLATEAU, "+scheduler.patience=1", "+scheduler.patience=2", 4),
        (ONE_CYCLE, "", "+scheduler.three_phase=true", 4),
        (DEFAULT, "", "scheduler.decay_ratio=0.4 scheduler.decay=linear", 12),
        (of_torch("MultiStepLR", "milestones=[9,18]"), "", "scheduler.milestones=[9,14]", 12),
        (of_torch("CosineAnnealingWarmRestarts", "T_0=6"), "", "+scheduler.T_mult=2", 4),
        (NARROW, "", "scheduler.decay_ratio=0.4", 12),
        (LANES, "strategy=none", "strategy=ddp dispatch.nproc=2 scheduler.decay_ratio=0.4", 12),
    ],
    "trainer.max_steps": [
        (DEFAULT, "", "trainer.max_steps=30", 16),
        (DEFAULT, "", "trainer.max_steps=14", 12),
        (DIGITS_ALONE, "", "trainer.max_steps=30", 16),
    ],
    "trainer.max_epochs": [(EPOCHS, "trainer.max_epochs=2", "trainer.max_epochs=4", 8)],
    "data.stages": [(MIXTURE, STAGES.format(500, 9), STAGES.format(384, 2), 12)],
    "hooks.ema.start": [(EMA, "", "hooks.ema.start=initial", 4)],
    "hooks.early_stopping.*": [
        (PATIENT, "hooks.early_stopping.min_delta=0.5", "", 4),
        (DEFAULT, "", STOPPING, 16),
    ],
    "hooks.checkpointing.best_metric": [
        (DEFAULT, "", "hooks.checkpointing.best_metric=train/loss", 12)
    ],
    "hooks.checkpointing.best_mode": [(DEFAULT, "", "hooks.checkpointing.best_mode=max", 16)],
    "observing": [
        (DEFAULT, "", ALL_OBSERVING, 16),
        (DEFAULT, "", "scheduler.decay_ratio=0.4 trainer.pause_at=9", 8),
    ],
}
"""Cases for each key with a rule: arguments of two runs, of the first, of the second, and the step
that the second one starts from. One case has all hooks that only observe."""


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_bytes())


def trained(folder: Path) -> int:
    return sum(one["end_step"] - one["start_step"] for one in record(folder)["attempts"])


def train(outputs: Path, *overrides: str) -> tuple[Path, str]:
    """Train one run; return its folder and the output."""
    before = set(outputs.glob("*/*/run.json"))
    done = runner.launch(outputs, *SHORT, *overrides, code=0)
    (new,) = set(outputs.glob("*/*/run.json")) - before
    return new.parent, done.output


def assert_equal(shared: Path, alone: Path) -> None:
    assert shared.name == alone.name
    assert runner.metrics_of(shared) == runner.metrics_of(alone)
    assert runner.state_of(shared) == runner.state_of(alone)


@pytest.fixture(scope="module")
def trunks(tmp_path_factory):
    """Folders of runs with the run `shared/trunk`, by its overrides."""

    @cache
    def trunk(*overrides: str) -> Path:
        outputs = tmp_path_factory.mktemp("trunk") / "outputs"
        folder, _ = train(outputs, *overrides, "run.name=shared", "run.id=trunk")
        assert record(folder)["state"] == "completed"
        return outputs

    return trunk


@pytest.fixture(scope="module")
def one_run(trunks):
    """Its best checkpoint at step 12 is that of step 12."""
    return trunks(*DEFAULT)


CASES = [
    pytest.param(*case, id=f"{key}-{number}")
    for key, cases in MATTERS.items()
    for number, case in enumerate(cases)
]


@pytest.mark.parametrize(("both", "first", "second", "step"), CASES)
def test_a_shared_run_equals_the_run_trained_alone(trunks, tmp_path, both, first, second, step):
    # The id of a run does not have the hooks that only observe.
    words, outputs = (*both, *split(second), "run.name=shared", "run.id=leaf"), tmp_path / "shared"
    shutil.copytree(trunks(*both, *split(first)), outputs, symlinks=True)
    leaf, output = train(outputs, *words, "run.share_prefix=true")
    assert f"New run. Shares steps 0 to {step} with trunk." in output
    assert record(leaf)["shared"] | {"digest": ""} == {"run": "trunk", "step": step, "digest": ""}
    alone, _ = train(tmp_path / "alone", *words)
    assert_equal(leaf, alone)
    assert trained(leaf) == trained(alone) - step
    assert record(alone)["shared"] is None


def declared() -> Iterator[str]:
    from launcher.config.settings import TrainerSettings
    from launcher.data.mixture import MixtureData
    from launcher.optim import schedulers

    owners: Any = {"trainer": TrainerSettings, "scheduler": schedulers, "data": MixtureData}
    for found in pkgutil.iter_modules(launcher.hooks.__path__):
        module = importlib.import_module(f"launcher.hooks.{found.name}")
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__:
                owners[f"hooks.{found.name}"] = value
                for key in vars(value).get("matters_from", {}):
                    yield f"hooks.{found.name}.{key}"
    for path in ("trainer", "scheduler", "data"):
        for key in owners[path].matters_from:
            yield f"{path}.{key}"


def test_each_declared_key_is_compared():
    compared = {*MATTERS} - {"observing"} | {f"hooks.{name}.*" for name in OBSERVING}
    assert {*declared()} == compared


PLANTED = """
import sys
from launcher.config.schema.matters_from import never
from launcher.config.settings import TrainerSettings
from launcher.cli.main import main
TrainerSettings.matters_from["max_grad_norm"] = never
main(sys.argv[1:])
"""


def test_a_wrong_declaration_is_found(tmp_path):
    """The comparison above fails if a key is said not to matter, and does."""
    other = "trainer.max_grad_norm=0.01"
    train(tmp_path / "shared", *DEFAULT)
    words = (f"paths.outputs={tmp_path / 'shared'}", *SHORT, *DEFAULT, other)
    done = python.run("-c", PLANTED, *words, "run.share_prefix=true", env=runner.ENVIRONMENT)
    assert "Shares steps 0 to 16 with" in done.stdout + done.stderr
    alone, _ = train(tmp_path / "alone", *DEFAULT, other)
    with pytest.raises(AssertionError):
        assert_equal(tmp_path / "shared" / alone.parent.name / alone.name, alone)


def leave(one_run: Path, outputs: Path, *overrides: str, change: Any = None) -> tuple[Path, str]:
    """Start a run with another decay next to a copy of the trunk."""
    shutil.copytree(one_run, outputs, symlinks=True)
    if change is not None:
        change(outputs / "shared" / "trunk")
    words = (*DEFAULT, "scheduler.decay_ratio=0.4", "run.name=shared", "run.id=leaf", *overrides)
    return train(outputs, *words, "run.share_prefix=true")


def attempt_has(**values: object) -> Any:
    def change(folder: Path) -> None:
        data = record(folder)
        data["attempts"][0] |= values
        (folder / "run.json").write_text(json.dumps(data))

    return change


def has_other_code(folder: Path) -> None:
    for file in folder.glob("checkpoints/step-*/code.yaml"):
        file.write_text(file.read_text().replace("torch-launcher", "x") + "x: 1\n")


def has_lost_its_weights(folder: Path) -> None:
    (folder / "checkpoints" / "step-00000012" / "shard-00000.safetensors").write_bytes(b"")


def has_lost_its_best(folder: Path) -> None:
    """The best checkpoint up to step 12 is one that was deleted since."""
    for file in folder.glob("checkpoints/step-*/rank-00000.json"):
        state = json.loads(file.read_bytes())
        (notes,) = (
            each["checkpointing"] for each in state["hooks"].values() if "checkpointing" in each
        )
        notes["best"]["step"] = 5
        changed, manifest = write_json(file, state), Manifest.read(file.parent)
        files = [changed if entry.name == file.name else entry for entry in manifest.files]
        replace(manifest, files=files).write(file.parent)


@pytest.mark.parametrize(
    ("change", "said", "steps"),
    [
        (attempt_has(machine="a GPU"), "it was trained on another machine: a GPU", 20),
        (attempt_has(micro_batch_size=16), "with 16 samples a pass", 20),
        (has_other_code, "x: 1 -> gone", 20),
        (has_lost_its_best, "step-00000005: manifest.json is missing", 20),
        (has_lost_its_weights, "New run. Shares steps 0 to 8", 12),
    ],
)
def test_what_is_not_the_same_is_not_shared(one_run, tmp_path, change, said, steps):
    leaf, output = leave(one_run, tmp_path / "outputs", change=change)
    assert said in output and trained(leaf) == steps


@pytest.mark.parametrize(
    ("setting", "step"),
    [("hooks.logging.interval=4", None), ("run.tag=again", None), ("data.num_workers=1", 12)],
)
def test_only_runs_that_are_the_same_up_to_a_step_share(one_run, tmp_path, setting, step):
    leaf, output = leave(one_run, tmp_path / "outputs", setting)
    assert ("New run. Shares steps 0 to 12" in output) == (step is not None)
    assert (record(leaf)["shared"] or {}).get("step") == step
    assert trained(leaf) == 20 - (step or 0)


GPT = split(
    "model=gpt model.dim=16 model.num_layers=1 model.num_heads=2 model.dropout=0.1 data.seq_len=16"
    " data.batch_size=4 scheduler=wsd scheduler.warmup_steps=3 trainer.max_steps=50 device=cpu"
    " hooks.logging.interval=5 hooks.evaluation.interval=10 hooks.evaluation.max_samples=8"
    " hooks.checkpointing.interval=10"
)
TRUNK = "*/*/checkpoints/step-00000020"
COOLDOWNS = ("-m", "seed=0,1", "scheduler.decay_ratio=0.08,0.24")


@pytest.fixture(scope="module")
def trained_alone(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("cooldowns")
    runner.launch(outputs, *GPT, *COOLDOWNS, code=0)
    return sorted(file.parent for file in outputs.glob("*/*/run.json"))


def assert_all_equal(outputs: Path, trained_alone: list[Path]) -> int:
    """Return the steps that were trained in all."""
    for alone in trained_alone:
        assert_equal(outputs / alone.parent.name / alone.name, alone)
    return sum(trained(outputs / alone.parent.name / alone.name) for alone in trained_alone)


def test_cooldowns_of_two_seeds_train_what_they_have_in_common_once(tmp_path, trained_alone):
    words = (*GPT, *COOLDOWNS, "run.share_prefix=true", "dispatch.parallel=2")
    done = runner.launch(tmp_path, *words, code=0)
    assert "4 runs, 200 steps; shared: 122 are trained" in done.output
    assert assert_all_equal(tmp_path, trained_alone) == 122
    for folder in tmp_path.glob("*/*"):
        steps = checkpoint_steps(folder / "checkpoints")
        # The last one, the one before it, and the best one.
        assert len(steps) <= 3 and max(steps) == 50


def test_a_trunk_that_is_killed_costs_only_time(tmp_path, trained_alone):
    words = [f"paths.outputs={tmp_path}", *GPT, *COOLDOWNS, "run.share_prefix=true"]
    words += ["dispatch.parallel=2", "+tracker.pace._target_=support.pacer.Pacer"]
    first = runner.start("-m", "launcher", *words, "+tracker.pace.seconds=0.02")
    try:
        wait_for(lambda: [*tmp_path.glob(TRUNK)])
        trunk = next(tmp_path.glob(TRUNK))
        os.kill(record(trunk.parents[1])["attempts"][-1]["pid"], signal.SIGKILL)
        output, _ = first.communicate(timeout=400)
    finally:
        first.kill()
    assert first.returncode == 1 and "stale: was killed by signal 9" in output, output
    # The same command resumes the trunk, and leaves the others as they are.
    runner.launch(tmp_path, *words[1:], "+tracker.pace.seconds=0", code=0)
    assert assert_all_equal(tmp_path, trained_alone) < 200


def test_shared_steps_are_shared_further_where_they_were_compared(one_run, tmp_path):
    leaf, _ = leave(one_run, tmp_path / "outputs")
    shutil.rmtree(leaf.parent / "trunk")
    words = (*DEFAULT, "run.name=shared", "run.share_prefix=true", "scheduler.decay_ratio=0.35")
    third, output = train(tmp_path / "outputs", *words)
    assert "New run. Shares steps 0 to 12 with leaf." in output
    shutil.rmtree(third)
    attempt_has(world_size=2)(leaf)
    _, output = train(tmp_path / "outputs", *words)
    assert "Shares no step 12 with leaf: it was trained on 2 ranks" in output
