"""Which states are saved, and which checkpoint a run resumes from, whatever it is named."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher import EvaluationHook, FunctionHook
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.errors import ConfigError, TrainingError
from launcher.hooks.checkpointing import CheckpointingHook
from launcher.hooks.progress import ProgressHook
from launcher.hooks.view import RunContext
from launcher.process import signals
from support.broken_disk import BrokenDisk
from support.toy import BAD, GOOD, Toy, Values


def train(
    workspace: Path,
    max_steps: int,
    load: Any = "auto",
    keep_previous: int = 1,
    is_composed: bool = False,
    **options: Any,
) -> Toy:
    hook = CheckpointingHook(2, keep_previous=keep_previous, load=load, **options)
    trainer = Toy([hook], max_steps, workspace, batches=[GOOD])
    if is_composed:
        trainer.context = RunContext(texts={"config.yaml": "{}"})
    trainer.train()
    return trainer


def steps(workspace: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (workspace / "checkpoints").glob("step-*"))


def resumed_at(trainer: Toy) -> int:
    return 0 if trainer.resumed_from is None else int(trainer.resumed_from.name[5:])


def same_tensors(one: Path, other: Path) -> bool:
    first, second = StoredCheckpoint(one), StoredCheckpoint(other)
    return all((first.read(name) == second.read(name)).all() for name in first.names())


def test_a_named_checkpoint_is_loaded_at_each_start(tmp_path):
    train(tmp_path, 8, keep_previous=9)
    full = str(tmp_path / "checkpoints" / "step-00000004")
    for load in ("4", "step-00000004", "checkpoints/step-00000004", full):
        assert resumed_at(train(tmp_path, 8, load, keep_previous=9)) == 4
    assert len(list(tmp_path.glob("checkpoints/abandoned-step-*"))) == 8
    assert resumed_at(train(tmp_path, 10)) == 8
    assert os.readlink(tmp_path / "checkpoints" / "latest") == "step-00000010"
    assert same_tensors(
        tmp_path / "checkpoints/step-00000008", tmp_path / "checkpoints/abandoned-step-00000008"
    )


def test_a_requeued_job_resumes_whatever_its_first_start_loaded(tmp_path, monkeypatch):
    train(tmp_path, 8, keep_previous=9)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    for step, load in ((8, 4), (10, "never"), (12, "must")):
        assert resumed_at(train(tmp_path, step + 2, load, keep_previous=9)) == step


def test_a_damaged_named_checkpoint_is_one_sentence(tmp_path):
    train(tmp_path, 4)
    for name in ("shard-00000.safetensors", "state.json"):
        with open(tmp_path / "checkpoints" / "step-00000004" / name, "r+b") as file:
            file.seek(-1, 2)
            file.write(b"\x01")
        with pytest.raises(ConfigError, match=f"^load=4: .* is damaged: {name} "):
            train(tmp_path, 6, "4")
        assert 4 in steps(tmp_path)


def test_a_lost_folder_of_checkpoints(tmp_path):
    (tmp_path / "run.json").write_text('{"checkpoint": 20}')
    for load in ("auto", "latest"):
        with pytest.raises(ConfigError, match=r"run\.json says that step 20 was saved"):
            train(tmp_path, 2, load)
    with pytest.raises(ConfigError, match=r"load=must"):
        train(tmp_path, 2, "must")
    assert resumed_at(train(tmp_path, 2, "never")) == 0


def test_a_failure_waits_for_the_save_in_flight(tmp_path, monkeypatch):
    def fail(trainer: Any) -> None:
        if trainer.step == 3:
            raise RuntimeError("broken")

    def slow(fd: int) -> None:
        time.sleep(0.1)
        fsync(fd)

    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", slow)
    with pytest.raises(RuntimeError, match="broken"):
        Toy([CheckpointingHook(2), FunctionHook(on_before_step=fail)], 5, tmp_path, [GOOD]).train()
    assert steps(tmp_path) == [2]


def test_a_kill_between_a_save_and_its_link(tmp_path):
    def train_to(max_steps: int) -> Path:
        checkpointing = CheckpointingHook(2, keep_previous=9, best_metric="val/loss")
        hooks = [Values({2: {"loss": 2.0}, 4: {"loss": 1.0}}), checkpointing]
        Toy(hooks, max_steps, tmp_path, [GOOD]).train()
        return tmp_path / "checkpoints" / "best"

    best = train_to(4)
    best.unlink()
    best.symlink_to("step-00000002")
    assert train_to(6).readlink() == Path("step-00000004")


@pytest.mark.parametrize(
    ("keep_previous", "kept"),
    [(9, [3, 4, 5, 6, 8, 9, 10]), (1, [4, 5, 8, 9, 10]), (0, [4, 5, 8, 10])],
)
def test_checkpoints_are_saved_and_kept_by_their_intervals(tmp_path, keep_previous, kept):
    hook = CheckpointingHook(3, keep_previous, keep_interval=4, keep_steps=[5], path="mine")
    Toy([hook], 10, tmp_path, [GOOD]).train()
    assert [int(path.name[5:]) for path in sorted(tmp_path.glob("mine/step-*"))] == kept


@pytest.mark.parametrize(
    ("settings", "code"), [({}, 128 + signal.SIGUSR1), ({"exit_code": 7, "exit_delay": 0.01}, 7)]
)
def test_the_exit_code_after_a_signal(tmp_path, settings, code):
    def stop(trainer: Any) -> None:
        if trainer.step == 3:
            os.kill(os.getpid(), signal.SIGUSR1)

    hook = CheckpointingHook(9, exit_signals="USR1", **settings)
    with pytest.raises(signals.SignalExit) as end:
        Toy([hook, FunctionHook(on_after_step=stop)], 5, tmp_path, [GOOD]).train()
    assert end.value.code == code and steps(tmp_path) == [3]


def test_a_value_before_the_first_step_is_no_best(tmp_path):
    """No checkpoint has it. A dry run does not count either."""
    early = FunctionHook(on_before_train=lambda trainer: trainer.log({"val": {"loss": 0.0}}))
    dry = FunctionHook(
        on_after_step=lambda trainer: trainer.log({"val": {"loss": 0.0}}, dry_run=True)
    )
    best = CheckpointingHook(2, keep_previous=9, best_metric="val/loss")
    Toy(
        [early, dry, Values({2: {"loss": 1.0}, 4: {"loss": 2.0}}), best], 4, tmp_path, [GOOD]
    ).train()
    assert (tmp_path / "checkpoints" / "best").readlink() == Path("step-00000002")


@pytest.mark.parametrize(
    ("failing", "last", "best", "value", "asynchronous"),
    [(4, 4.5, 6, 4.5, True), (4, 4.5, 6, 4.5, False), (4, 5.5, 2, 5.0, True), (2, 9, 4, 4.0, True)],
)
def test_a_best_value_counts_only_once_it_is_saved(
    tmp_path, monkeypatch, failing, last, best, value, asynchronous
):
    """The save of a step fails, and its value with it: a later value is compared with another
    step's, or with none."""
    monkeypatch.setattr(os, "open", os.open)  # what the broken disk replaces is put back
    hook = CheckpointingHook(2, keep_previous=9, best_metric="val/loss", asynchronous=asynchronous)
    values = {2: {"loss": 5.0}, 4: {"loss": 4.0}, 6: {"loss": last}}
    Toy([BrokenDisk([failing], call="open"), Values(values), hook], 6, tmp_path, [GOOD]).train()
    assert steps(tmp_path) == [step for step in (2, 4, 6) if step != failing]
    assert (tmp_path / "checkpoints" / "best").readlink() == Path(f"step-{best:08d}")
    assert hook.best is not None and (hook.best.value, hook.best.step) == (value, best)


# --------------------------------------------------------------------------- whose checkpoint it is
@pytest.mark.parametrize(
    ("path", "folder"), [("mine", "runs/b/mine"), ("../../shared", "shared/runs/b")]
)
def test_runs_with_the_same_path_have_their_own_checkpoints(tmp_path, path, folder):
    workspace, own = tmp_path / "runs" / "b", tmp_path / folder
    train(tmp_path / "runs" / "a", 4, path=path)
    trainer = train(workspace, 4, path=path)
    assert trainer.resumed_from is None, "the other run's checkpoints are not this one's"
    assert sorted(own.glob("step-*")) == [own / "step-00000002", own / "step-00000004"]
    assert steps(workspace) == [2, 4], "`checkpoints` of the run leads there"
    if not own.is_relative_to(workspace):
        shutil.rmtree(workspace)
    # It is found without the run's folder, and then without the option, by the link.
    assert resumed_at(train(workspace, 6, path=path)) == 4
    assert steps(workspace) == [4, 6]
    assert resumed_at(train(workspace, 7)) == 6


def test_checkpoints_at_another_place_than_before_are_reported(tmp_path):
    train(tmp_path / "run", 4)
    with pytest.raises(
        ConfigError, match=r"of this run are in .*run/checkpoints, and not in .*there/.*/run: move"
    ):
        train(tmp_path / "run", 6, path="../there")
    os.makedirs(tmp_path / "there" / tmp_path.name)
    os.rename(tmp_path / "run" / "checkpoints", tmp_path / "there" / tmp_path.name / "run")
    assert resumed_at(train(tmp_path / "run", 6, path="../there")) == 4


@pytest.mark.parametrize("how", ["copied", "linked"])
def test_a_checkpoint_of_another_run_is_only_resumed_by_name(tmp_path, how):
    other, mine = tmp_path / "name" / "other", tmp_path / "name" / "mine"
    train(other, 4, is_composed=True)
    mine.mkdir()
    if how == "copied":
        shutil.copytree(other / "checkpoints", mine / "checkpoints", symlinks=True)
    else:
        (mine / "checkpoints").symlink_to(other / "checkpoints")
    for load in ("auto", "must"):
        with pytest.raises(ConfigError, match="of the run name/other, not of name/mine"):
            train(mine, 8, load, is_composed=True)
    assert steps(other) == steps(mine) == [2, 4]
    named = mine / "checkpoints" / "step-00000004"
    assert resumed_at(train(mine, 8, named, keep_previous=0, is_composed=True)) == 4
    assert steps(mine) == [2, 4, 8], "the other run's are not deleted"
    assert resumed_at(train(mine, 10, is_composed=True)) == 8


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_renamed_run_keeps_its_checkpoints(tmp_path, is_recorded):
    old, new = tmp_path / "name" / "old", tmp_path / "name" / "new"
    train(old, 4, is_composed=is_recorded)
    if is_recorded:
        (old / "run.json").write_text('{"id": "old", "name": "name"}')
    old.rename(new)
    assert resumed_at(train(new, 6, is_composed=is_recorded)) == 4


def test_checkpoints_of_another_history_are_not_mixed_with_it(tmp_path, caplog):
    train(tmp_path / "other", 6)
    train(tmp_path / "mine", 4)
    train(tmp_path / "mine", 8, load=tmp_path / "other" / "checkpoints" / "step-00000006")
    assert "is kept as abandoned-step-00000004" in caplog.text
    assert steps(tmp_path / "mine") == [8]


def test_a_workspace_of_trainloop_can_be_loaded(tmp_path, caplog):
    def run(max_steps: int, *first: FunctionHook) -> Toy:
        caplog.clear()
        caplog.set_level("INFO")
        trainer = Toy([*first, CheckpointingHook(2), ProgressHook()], max_steps, tmp_path, [GOOD])
        trainer.train()
        return trainer

    source = Toy([], 4, tmp_path / "source", [GOOD])
    source.train()
    theirs = tmp_path / "checkpoints" / "4"
    theirs.mkdir(parents=True)
    state = source.state_dict()
    kept = ("step", "optimizer", "lr_scheduler", "grad_scaler")
    torch.save(state["model"], theirs / "model.pt")
    torch.save({key: state["training_state"][key] for key in kept}, theirs / "training_state.pt")
    (tmp_path / "checkpoints" / "latest").symlink_to("4")

    def load(trainer: Any) -> None:
        trainer.load_state_dict(
            {file.stem: torch.load(file, weights_only=False) for file in theirs.glob("*.pt")}
        )

    assert run(6, FunctionHook(on_restore=load)).resumed_from is None
    assert "Training from step 4 to 6." in caplog.text
    assert resumed_at(run(6, FunctionHook(on_restore=load))) == 6, "its own checkpoint counts"


# ------------------------------------------------------------------- checkpoints that do not fit
class Sgd(Toy):
    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)


class Faster(Toy):
    def build_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().build_optimizer()
        for group in optimizer.param_groups:
            group["lr"] = 7.0
        return optimizer


def test_the_settings_of_the_checkpoints_optimizer_are_kept(tmp_path):
    first = Toy([CheckpointingHook(1)], 1, tmp_path)
    first.train()
    other = Faster([CheckpointingHook(1)], 2, tmp_path)
    other.train()
    for before, group in zip(
        first.optimizer.param_groups, other.optimizer.param_groups, strict=True
    ):
        assert group["initial_lr"] == before["initial_lr"] != 7.0


class Fewer(Toy):
    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters())


class Wider(Toy):
    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(2, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1)
        )


class Deeper(Toy):
    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(*super().build_model(), torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (Sgd, "The optimizer is SGD, 1 group; .* written with AdamW, 4 groups"),
        (Fewer, "AdamW, 1 group; .* AdamW, 4 groups"),
        (Wider, r"shape \(2, 2\) in"),
        (Deeper, "3.weight: the checkpoint"),
    ],
)
def test_checkpoint_that_does_not_fit_is_rejected_before_the_attempt(tmp_path, other, why):
    Toy([CheckpointingHook(1, 9)], 3, tmp_path).train()
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    with pytest.raises(
        ConfigError, match=f"^load=latest: .*does not fit this configuration: .*{why}"
    ):
        other([CheckpointingHook(1)], 5, tmp_path).train()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before, (
        "nothing was abandoned"
    )


# ----------------------------- a state whose updates are skipped may be broken, and is not saved
def test_a_run_that_ends_in_skipped_updates_fails_and_keeps_its_last_good_checkpoint(tmp_path):
    with pytest.raises(TrainingError, match="2 skipped updates in a row"):
        Toy([CheckpointingHook(1)], 4, tmp_path, [GOOD, GOOD, BAD, BAD]).train()
    assert steps(tmp_path) == [2]
    assert (tmp_path / "checkpoints" / "latest").resolve().name == "step-00000002"


def test_a_checkpoint_that_was_due_is_saved_at_the_next_good_step(tmp_path):
    Toy([CheckpointingHook(2, keep_previous=9)], 5, tmp_path, [GOOD, BAD, GOOD, GOOD, GOOD]).train()
    assert steps(tmp_path) == [3, 4, 5]


def test_a_metric_of_such_a_state_is_not_the_best(tmp_path):
    hooks = [
        Values({1: {"loss": 2.0}, 2: {"loss": 1.0}}),
        CheckpointingHook(9, best_metric="val/loss"),
    ]
    Toy(hooks, 3, tmp_path, [GOOD, BAD, GOOD]).train()
    assert (tmp_path / "checkpoints" / "best").resolve().name == "step-00000001"


def test_a_run_that_ends_in_a_non_finite_validation_fails(tmp_path):
    batches = [GOOD]
    hook = EvaluationHook(interval=1, loader=lambda: batches)

    class Spoiled(Toy):
        def forward(self, input: torch.Tensor) -> object:
            loss, records = super().forward(input)
            return loss * (1.0 if self.model.training or self.step != 3 else float("inf")), records

    with pytest.raises(TrainingError, match="val/loss=inf at step 3"):
        Spoiled([hook, CheckpointingHook(1)], 3, tmp_path).train()
    assert steps(tmp_path) == [2]


def test_a_loss_scaler_in_search_of_its_scale_is_no_failure(tmp_path):
    trainer = Toy([CheckpointingHook(1)], 1, tmp_path, [GOOD * 100], mixed_precision="fp16")
    trainer.train()
    assert trainer.state.skipped_in_row == 1 and steps(tmp_path) == [1]
