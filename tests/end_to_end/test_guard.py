"""`python -m launcher.guard` as a user types it: other commits, other presets, `guard.lock`."""

import json
import os
import signal
import subprocess

import pytest
from benchmarks.guard_cases import CHANGES, FILES
from benchmarks.guard_refactors import REFACTORS, apply, replace

from support import python
from support.git import commit, git

CHANGE = {change.name: change for change in CHANGES}


@pytest.fixture
def project(tmp_path):
    """A small project with one commit."""
    folder = tmp_path / "project"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(tmp_path, "init", "-q", "-b", "main", "project")
    commit(folder)
    return folder


def start(folder, *words, trainings=2, **options):
    scratch = folder.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(scratch)}
    children = (("guard_job.py", trainings),)
    return python.start(
        "-m", "launcher.guard", *words, cwd=folder, env=env, children=children, **options
    )


def guard(folder, *words, trainings=2):
    """The exit code and the lines of a command. It leaves nothing behind."""
    process = start(folder, *words, trainings=trainings, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=400)
    assert "Traceback" not in err, err
    assert not list((folder.parent / "scratch").glob("launcher-*"))
    assert not (folder / "outputs").exists()
    return process.returncode, out.splitlines() or err.splitlines()


def test_refactors_are_identical_and_a_change_is_found_among_them(project):
    for refactor in REFACTORS[:15]:
        apply(project, refactor)
    git(project, "add", "-A")
    words = ("experiment=small", "--steps", "2")
    assert guard(project, *words) == (
        0,
        [
            "experiment=small: bitwise identical (2 steps, 6 tensors); renamed: first -> entry.",
            "  configuration: data.dataset._target_: small.data.Points -> small.data.PointSet,"
            " data.val_dataset._target_: small.data.Points -> small.data.PointSet,"
            " model._target_: small.model.Net -> small.net.Net",
        ],
    )
    git(project, "commit", "-qam", "refactors")
    replace(project / "small/net.py", "import torch", "import torch, missing")
    git(project, "commit", "-qam", "does not start")
    replace(project / "small/net.py", "import torch, missing", "import torch")
    git(project, "commit", "-qam", "starts again")
    change = CHANGE["a hook that writes"]
    replace(project / change.file, change.before, change.after)
    git(project, "commit", "-qam", change.name)
    git(project, "commit", "-q", "--allow-empty", "-m", "nothing")
    before = git(project, "reflog")
    code, lines = guard(project, *words, "--bisect", "HEAD~5", trainings=8)
    assert code == 1 and lines[0].endswith(f" {change.name}"), lines
    assert lines[1].startswith("  differs from step 1: gradient of entry.weight (")
    assert "values, at most" in lines[1] and lines[1].endswith(
        "; samples and loss are equal until then."
    )
    assert git(project, "reflog") == before and git(project, "status", "--porcelain") == b""


def test_a_schedule_that_differs_after_the_steps_is_found(project):
    change = CHANGE["a schedule off by one"]
    replace(project / change.file, change.before, change.after)
    code, lines = guard(project, "experiment=small", "--steps", "2", trainings=4)
    text = "differs from step 31: learning rate (0.1 instead of 0.010000000000000002)"
    assert code == 1
    assert lines == [f"experiment=small: {text}; the steps before are equal."]


def test_an_evaluation_that_differs_is_found_in_the_logged_lines(project):
    replace(project / "conf/data/points.yaml", "size: 32", "size: 30")
    code, lines = guard(project, "experiment=small", "--steps", "2", trainings=4)
    assert code == 1 and "differs in metrics.jsonl, step 0: val/loss " in lines[0], lines
    assert lines[1] == "  configuration: data.val_dataset.size: 32 -> 30"


def test_a_training_that_does_not_repeat_is_not_compared(project):
    replace(project / "small/data.py", "* index)", "* index) + __import__('time').time() % 1")
    code, lines = guard(project, "experiment=small", "--steps", "1", trainings=4)
    text = "does not repeat with the working tree: a second training differs from step 1: samples"
    assert code == 2 and lines[0] == f"experiment=small: {text}."


def test_presets_agree_and_guard_lock_knows_them(project):
    (project / "guard.yaml").write_text(
        "steps: 2\n"
        "presets:\n"
        "  one: [experiment=small, trainer.lanes=2]\n"
        "  two: [experiment=small, trainer.lanes=2, strategy=ddp, dispatch.nproc=2]\n"
        "  small: [experiment=small, trainer.micro_batch_size=4]\n"
        "equal:\n"
        "  - [one, two]\n"
        "  - {presets: [small, one], close: 1e-9}\n"
    )
    commit(project)
    git(project, "commit", "-q", "--allow-empty", "-m", "nothing")
    code, lines = guard(project, trainings=3)
    assert code == 1 and lines[0].startswith("Nothing to compare"), lines
    assert lines[4] == "one, two: equal."
    assert lines[5].startswith("small, one: one and small differ: step 1: train/loss ")


def test_a_digest_is_one_line_for_each_machine(project):
    words = ("experiment=small", "--steps", "2")
    assert guard(project, *words, "--locked", trainings=1)[0] == 3
    assert guard(project, *words, "--write", trainings=1)[0] == 0
    assert guard(project, *words, "--locked", trainings=1)[0] == 0
    ((machine, line),) = json.loads((project / "guard.lock").read_text())[words[0]].items()
    assert "thread" in machine and "torch" in machine and line.startswith("2 steps: ")
    change = CHANGE["one ulp in an optimizer"]
    replace(project / change.file, change.before, change.after)
    code, lines = guard(project, *words, "--locked", trainings=1)
    assert code == 1 and "differs from guard.lock." in lines[0] and lines[1] == f"  locked: {line}"


def test_what_is_absent_at_the_other_commit_is_said(project):
    (project / "small/points.txt").write_text("1 2 3")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "points")
    (project / "conf/experiment/other.yaml").write_text(
        (project / "conf/experiment/small.yaml").read_text() + "data:\n  dataset:\n    size: 64\n"
    )
    git(project, "add", "-A")
    code, lines = guard(project, "experiment=other", "--steps", "1")
    assert code == 0 and "experiment=other: not compared, " in lines[0]
    assert "rejects it: experiment=other: " in lines[0]
    code, lines = guard(project, "experiment=none", "--steps", "1", trainings=1)
    assert code == 2 and "cannot be trained with the working tree: experiment=none: " in lines[0]


AGAINST = ("--against", "HEAD~2")
SMALL = "experiment=small"


@pytest.mark.parametrize(
    ("words", "until", "signums"),
    [
        # The copy, the first training, and several of them.
        ((SMALL, *AGAINST), "Against", (signal.SIGINT,)),
        ((SMALL, *AGAINST), "with the working tree", (signal.SIGINT, signal.SIGINT)),
        ((SMALL, *AGAINST), "with the working tree", (signal.SIGTERM,)),
        (("--parallel", "2", *AGAINST), "two: 20 steps with", (signal.SIGINT, signal.SIGTERM)),
        # The second training, since only the other commit's code sleeps.
        ((SMALL, "--against", "HEAD"), "with {head}", (signal.SIGINT,)),
        ((SMALL, "--bisect", "HEAD~1"), " with ", (signal.SIGINT,)),
        ((SMALL, "--write"), " with ", (signal.SIGINT,)),
    ],
)
def test_a_signal_leaves_nothing_behind(project, words, until, signums):
    presets = f"presets: {{one: [{SMALL}], two: [{SMALL}, seed=1]}}\n"
    (project / "guard.yaml").write_text(presets)
    before = (project / "small/data.py").read_text()
    replace(project / "small/data.py", "torch.stack", "__import__('time').sleep(60) or torch.stack")
    commit(project)
    git(project, "commit", "-q", "--allow-empty", "-m", "nothing")
    if "{head}" in until:
        (project / "small/data.py").write_text(before)
    until = until.format(head=git(project, "rev-parse", "HEAD").decode()[:12])
    status = git(project, "status", "--porcelain")
    process = start(project, *words, stderr=subprocess.PIPE)
    line = ""
    while until not in line:
        line = process.stderr.readline()
        assert line
    for signum in signums:
        process.send_signal(signum)
    _, err = process.communicate(timeout=100)
    assert "Interrupted; nothing is left behind." in err and "Traceback" not in err, err
    assert process.returncode in {128 + signum for signum in signums}
    assert not list((project.parent / "scratch").glob("launcher-*"))
    assert git(project, "status", "--porcelain") == status


TRAINER = """
import torch
from launcher.train.trainer import BaseTrainer


class Own(BaseTrainer):
    def build_data_loader(self):
        return torch.utils.data.DataLoader(torch.arange(8.0).view(8, 1), batch_size=2)

    def build_model(self):
        return torch.nn.Linear(1, 1)

    def build_optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.01)

    def forward(self, batch):
        return self.model(batch).square().mean(), {}


def make():
    return Own(max_steps=8, device="cpu")
"""
TEST = """
from own import make

from launcher import guard


def test_this_code_trains_as_the_code_before():
    found = guard.compare(make, steps=3)
    assert found.is_identical, found.text
"""


def test_a_trainer_of_ones_own_is_compared_in_a_test(tmp_path):
    (tmp_path / "own.py").write_text(TRAINER)
    (tmp_path / "test_own.py").write_text(TEST)
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path)
    pytest_words = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    children = (("guard_job.py", 6),)
    for mean, code, text in (("pow(2).mean()", 0, "1 passed"), ("abs().mean()", 1, "step 1: loss")):
        (tmp_path / "own.py").write_text(TRAINER.replace("square().mean()", mean))
        process = python.start(*pytest_words, cwd=tmp_path, children=children)
        out, _ = process.communicate(timeout=400)
        assert process.returncode == code and text in out, out
