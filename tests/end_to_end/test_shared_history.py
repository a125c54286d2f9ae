"""Something was done to a run, and another one shares its steps: the other one equals itself
trained alone, or shares less and says why."""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from shlex import split
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from launcher.models.mlp import MLP
from support import python, runner

NETS = """
from launcher.models.mlp import MLP

class Net(MLP):
    def forward(self, batch):
        loss, records = super().forward(batch)
        return loss * 1.0, records
"""
FUNCTIONS = """
import torch

def decay(trainer):
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(1 - 0.01 * trainer.step / trainer.max_steps)

def follow(trainer):
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(1 - trainer.optimizer.param_groups[0]["lr"])

class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(64), index % 10
"""
TRAIN = split(
    "model=mlp model._target_=nets.Net model.hidden_dim=16 model.dropout=0.1 data=digits"
    " data.batch_size=32 optimizer.lr=0.01 scheduler=wsd scheduler.warmup_steps=3"
    " trainer.max_steps=20 hooks.logging.interval=3 hooks.evaluation.interval=4"
    " hooks.evaluation.max_samples=64 hooks.checkpointing.interval=4"
    " hooks.checkpointing.keep_interval=4 run.name=history device=cpu"
)
LEAF = ["scheduler.decay_ratio=0.4"]
"""A run of 20 steps that decays from step 13 on; the trunk decays from step 17 on."""
LONGER = ["trainer.max_steps=40"]
PAUSE = "trainer.pause_at=8"
RATE, DROPOUT = "optimizer.lr=0.02", "model.dropout=0.3"
COSINE = ["scheduler=cosine"]
WEIGHTS = ["run.init_from=weights.safetensors"]
NOISE = split(
    "data=custom data.dataset._target_=functions.Noise data.seed_samples=false"
    " data.num_features=64 data.num_classes=10 ~hooks.evaluation"
)
HOOK = "+hooks.mine._target_=launcher.FunctionHook"
DECAY = [HOOK, "+hooks.mine.on_after_step=functions.decay"]
FOLLOW = [HOOK, "+hooks.mine.on_after_step=functions.follow"]
SOONER = ["scheduler.decay_ratio=0.45"]
"""A run whose rate differs in step 13, so a hook sees it after step 12."""


class Project:
    """A user's project, and its runs. Its first run is copied from a project that has trained it,
    if there is one."""

    def __init__(self, folder: Path, first: Callable[..., tuple[Path, str]] | None = None):
        self.folder, self.first = folder, first
        for name, text in {"nets.py": NETS, "functions.py": FUNCTIONS}.items():
            (folder / name).write_text(text)
        self.save_weights(0)

    def start(self, *arguments: str) -> str:
        if self.first is not None and not self.folders:
            folder, output = self.first(*arguments)
            outputs = self.folder / "outputs"
            shutil.copytree(folder / "outputs", outputs, symlinks=True, dirs_exist_ok=True)
            return output
        return self._run("launcher", *TRAIN, *arguments)

    def runs(self, *arguments: str) -> str:
        return self._run("launcher.runs", *arguments)

    def _run(self, *arguments: str) -> str:
        done = python.run("-m", *arguments, cwd=self.folder, env=runner.ENVIRONMENT)
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        return output

    def edit(self, scale: float) -> None:
        """Change the scale, a second later for Python, whose bytecode stores whole seconds."""
        file = self.folder / "nets.py"
        later = file.stat().st_mtime + 1
        file.write_text(NETS.replace("1.0", str(scale)))
        os.utime(file, (later, later))

    def save_weights(self, seed: int) -> None:
        torch.manual_seed(seed)
        model = MLP(num_features=64, num_classes=10, hidden_dim=16)
        save_file(model.state_dict(), self.folder / "weights.safetensors")

    @property
    def folders(self) -> list[Path]:
        return [file.parent for file in self.folder.glob("outputs/history/*/run.json")]

    @property
    def trunk(self) -> Path:
        (folder,) = self.folders
        return folder

    def change_record(self, change: Callable[[dict[str, Any]], object]) -> None:
        data = record(self.trunk)
        change(data)
        (self.trunk / "run.json").write_text(json.dumps(data))


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_bytes())


# ------------------------------------------------------------------------------- what is done to it
def untouched(project: Project) -> None:
    project.start()


def resumed(project: Project) -> None:
    project.start(PAUSE)
    project.start("trainer.pause_at=11")
    project.start()


def resumed_with(*arguments: str, first: Sequence[str] = ()) -> Callable[[Project], None]:
    def act(project: Project) -> None:
        project.start(*first, PAUSE)
        project.start(*first, f"run.id={project.trunk.name}", *arguments)

    return act


def resumed_by_its_verb(project: Project) -> None:
    project.start(PAUSE)
    project.runs("resume", project.trunk.name, DROPOUT, "trainer.pause_at=null")


def extended(*arguments: str) -> Callable[[Project], None]:
    def act(project: Project) -> None:
        project.start(*arguments)
        project.start(*arguments, f"run.id={project.trunk.name}", *LONGER)

    return act


def adopted_in_the_middle(project: Project) -> None:
    project.start(PAUSE)
    project.runs("adopt", project.trunk.name, "--", *TRAIN, RATE)
    project.start(RATE)


def adopted_at_its_end(project: Project) -> None:
    project.start()
    project.runs("adopt", project.trunk.name, "--", *TRAIN, RATE)


def forked(project: Project) -> None:
    project.start()
    project.runs("fork", project.trunk.name, "--at", "8", RATE, "run.name=fork")


def rolled_back(*arguments: str) -> Callable[[Project], None]:
    def act(project: Project) -> None:
        project.start()
        project.runs("rollback", project.trunk.name, "8")
        project.start(f"run.id={project.trunk.name}", *arguments)

    return act


def edited(*scales: float) -> Callable[[Project], None]:
    def act(project: Project) -> None:
        project.start(PAUSE)
        for pause_at, scale in enumerate(scales, 9):
            project.edit(scale)
            project.start(f"trainer.pause_at={pause_at}")
        project.start()

    return act


def began_from(rewrites: bool) -> Callable[[Project], None]:
    def act(project: Project) -> None:
        project.start(*WEIGHTS)
        project.save_weights(seed=int(rewrites))

    return act


def moved(project: Project) -> None:
    project.start()
    project.trunk.rename(project.trunk.with_name("elsewhere"))


def loaded_from_elsewhere(project: Project) -> None:
    project.start(DROPOUT, "run.name=other")
    (other,) = project.folder.glob("outputs/other/*/checkpoints/step-00000008")
    project.start(f"hooks.checkpointing.load={other}")


def lost_its_history(project: Project) -> None:
    project.start()
    project.change_record(lambda data: data["attempts"][0].pop("trained"))


CONFIGURATION = r"were trained with another configuration \("
CASES: dict[str, tuple[Callable[[Project], None], Sequence[str], int | None, str]] = {
    "untouched": (untouched, LEAF, 12, "Shares steps 0 to 12"),
    "resumed": (resumed, LEAF, 12, "Shares steps 0 to 12"),
    "a lengthened trunk": (resumed_with(*LONGER), [*LONGER, *LEAF], 24, "Shares steps 0 to 24"),
    "extended after its decay": (
        extended(),
        [*LONGER, *LEAF],
        16,
        f"Shares no step 24 with .*: its steps 1 to 20 {CONFIGURATION}",
    ),
    "extended cosine": (
        extended(*COSINE, "scheduler.warmup_steps=null"),
        [*LONGER, *COSINE, "scheduler.warmup_steps=null"],
        None,
        f"its steps 1 to 20 {CONFIGURATION}",
    ),
    "another value, old one asked for": (
        resumed_with(DROPOUT),
        LEAF,
        8,
        rf"its steps 9 to 12 {CONFIGURATION}model.dropout: 0.3 -> 0.1\)",
    ),
    "another value, new one asked for": (
        resumed_with(DROPOUT),
        [*LEAF, DROPOUT],
        None,
        rf"its steps 1 to 8 {CONFIGURATION}model.dropout: 0.1 -> 0.3\)",
    ),
    "resumed by runs resume": (resumed_by_its_verb, LEAF, 8, f"its steps 9 to 12 {CONFIGURATION}"),
    "other intervals": (
        resumed_with("hooks.logging.interval=2", "hooks.evaluation.interval=2"),
        [*LEAF, "hooks.logging.interval=2", "hooks.evaluation.interval=2"],
        None,
        f"its steps 1 to 8 {CONFIGURATION}hooks.evaluation.interval: 4 -> 2",
    ),
    "an interval that does not matter": (
        resumed_with("hooks.progress.interval=2"),
        LEAF,
        12,
        "Shares steps 0 to 12",
    ),
    "adopted, new rate": (
        adopted_in_the_middle,
        [*LEAF, RATE],
        None,
        f"its steps 1 to 8 {CONFIGURATION}optimizer.lr",
    ),
    "adopted, old rate": (adopted_in_the_middle, LEAF, 8, f"its steps 9 to 12 {CONFIGURATION}"),
    "adopted at its end, new rate": (adopted_at_its_end, [*LEAF, RATE], None, "New run|Step"),
    "adopted at its end, old rate": (adopted_at_its_end, LEAF, 12, "Shares steps 0 to 12"),
    "forked": (forked, LEAF, 12, "Shares steps 0 to 12"),
    "rolled back": (rolled_back(), LEAF, 12, "Shares steps 0 to 12"),
    "rolled back, with another value": (
        rolled_back(DROPOUT),
        LEAF,
        8,
        f"its steps 9 to 12 {CONFIGURATION}",
    ),
    "edited": (edited(2.0), LEAF, None, "after a change: nets.py: was edited"),
    "edited and edited back": (edited(2.0, 1.0), LEAF, 8, "after a change: nets.py: was edited"),
    "the same weights": (began_from(rewrites=False), [*LEAF, *WEIGHTS], 12, "Shares steps 0 to 12"),
    "other weights": (
        began_from(rewrites=True),
        [*LEAF, *WEIGHTS],
        None,
        "from other weights: run.init_from has changed",
    ),
    "moved": (moved, LEAF, 12, "Shares steps 0 to 12 with elsewhere"),
    "loaded from elsewhere": (loaded_from_elsewhere, LEAF, None, "it started from a checkpoint of"),
    "no history": (lost_its_history, LEAF, None, "has not recorded with what"),
    "a function of the user": (
        lambda project: project.start(*DECAY),
        [*LONGER, *DECAY],
        None,
        "Shares no step with .*: trainer.max_steps: 20 -> 40",
    ),
    "a function of the user, at the rate": (
        lambda project: project.start(*FOLLOW),
        [*SOONER, *FOLLOW],
        8,
        "Shares steps 0 to 8",
    ),
    "workers that draw": (
        lambda project: project.start(*NOISE),
        [*LEAF, *NOISE, "data.num_workers=1"],
        None,
        "Shares no step with .*: data.num_workers=1",
    ),
    "another strategy": (
        untouched,
        [*LEAF, "strategy=ddp"],
        None,
        r"Shares no step with .*: strategy._target_: .*auto.* -> .*ddp",
    ),
    "other lines": (
        untouched,
        [*LEAF, "hooks.logging.interval=4"],
        None,
        "Shares no step with .*: hooks.logging.interval: 3 -> 4",
    ),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Projects with a run that shares nothing, and its output, by the run's arguments."""

    @cache
    def train(*words: str) -> tuple[Path, str]:
        project = Project(tmp_path_factory.mktemp("alone"))
        return project.folder, project.start(*words)

    return train


@pytest.mark.parametrize("case", CASES)
def test_a_run_shares_what_it_would_have_trained(tmp_path, alone, case):
    act, words, step, said = CASES[case]
    project = Project(tmp_path, alone)
    act(project)
    before = {*project.folders}
    output = project.start(*words, "run.share_prefix=true")
    (leaf,) = {*project.folders} - before
    assert re.search(said, output), output
    assert (record(leaf)["shared"] or {}).get("step") == step, output
    if step is not None:
        other = Project(alone(*words)[0]).trunk
        assert runner.metrics_of(leaf) == runner.metrics_of(other)
        assert runner.state_of(leaf) == runner.state_of(other)
