"""`runs claim` and `runs check`: honest and forged claims, made in one clone and checked in
another by somebody who has the repository, the data, the claim and the run's folder."""

import json
import os
import random
import shutil
from itertools import pairwise
from pathlib import Path
from shlex import split

import pytest
import torch

from launcher.checkpoint.manifest import Manifest
from launcher.checkpoint.shards import write_tensors
from launcher.checkpoint.stored import StoredCheckpoint, weights_digest
from launcher.proof.claim_file import Claim, digest_file
from launcher.proof.segment import choose
from launcher.runs.look.show import newest_digest
from launcher.runs.stored_run import StoredRun
from support.git import commit, git
from support.runner import run_folder, start

SOURCE = """import torch


class Pairs:
    def __init__(self, path: str):
        rows = [line.split(",") for line in open(path).read().split()]
        self.rows = [([float(value) for value in row[:-1]], int(row[-1])) for row in rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        values, label = self.rows[index]
        return torch.tensor(values), label
"""
RUN = split(
    "data=custom data.dataset._target_=pairs.Pairs +data.dataset.path=data/train.csv"
    " +data.val_dataset={_target_:pairs.Pairs,path:data/val.csv} data.num_features=3"
    " data.num_classes=2 data.batch_size=8 model=mlp model.hidden_dim=4 model.dropout=0.1"
    " device=cpu trainer.lanes=4 trainer.max_steps=6 hooks.logging.interval=2"
    " hooks.evaluation.interval=2 hooks.checkpointing.interval=2"
    " hooks.checkpointing.keep_previous=9"
)
STEPS = [0, 2, 4, 6]


def python(cwd: Path, *words: str, code: int = 0) -> str:
    process = start("-m", *words, cwd=cwd)
    output, _ = process.communicate()
    assert process.returncode == code, output
    return str(output)


def write_rows(file: Path, count: int, seed: int) -> None:
    chance = random.Random(seed)
    rows = [[*(f"{chance.random():.3f}" for _ in range(3)), str(i % 2)] for i in range(count)]
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{','.join(row)}\n" for row in rows))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The public repository."""
    folder = tmp_path_factory.mktemp("public") / "project"
    write_rows(folder.parent / "data" / "train.csv", 60, seed=1)
    folder.mkdir()
    shutil.move(folder.parent / "data", folder / "data")
    write_rows(folder / "data" / "val.csv", 20, seed=2)
    (folder / "pairs.py").write_text(SOURCE)
    (folder / ".gitignore").write_text("outputs/\n__pycache__/\n")
    commit(folder)
    return folder


@pytest.fixture(scope="module")
def verifier(project, tmp_path_factory):
    return clone(project, tmp_path_factory.mktemp("verifier") / "clone")


def clone(project: Path, target: Path) -> Path:
    git(project, "clone", "-q", str(project), str(target))
    return target


def claimed(folder: Path) -> Path:
    """Claim the run of a clone; return its folder."""
    run = run_folder(folder / "outputs")
    python(folder, "launcher.runs", "claim", run.name)
    return run


@pytest.fixture(scope="module")
def honest(project, tmp_path_factory):
    folder = clone(project, tmp_path_factory.mktemp("honest") / "clone")
    python(folder, "launcher", *RUN)
    return claimed(folder)


def check(verifier: Path, run: Path, *words: str, code: int) -> str:
    file = str(run / "claim.json")
    where = ("--from", str(run), "--trust") if words else ()
    return python(verifier, "launcher.runs", "check", file, *where, *words, code=code)


def test_an_honest_claim_holds(honest, verifier):
    text = (honest / "claim.json").read_text()
    data = json.loads(text)
    data["predicate"]["identity"] = {}
    assert len(json.dumps(data, indent=1)) <= 4000
    for word in (str(honest.parents[2]), os.uname().nodename, '"vm"', "home"):
        assert word not in text
    step, digest = data["predicate"]["chain"]["lines"][-1].split()
    assert newest_digest(StoredRun.read(honest)) == f"{digest} at step {step}"
    before = {path: path.stat().st_mtime_ns for path in honest.rglob("*")}
    output = check(verifier, honest, "--level=2", "--segments=1", code=0)
    assert "Level 2 holds: 1 of 3 segments" in output and "numbers and random states" in output
    assert {path: path.stat().st_mtime_ns for path in honest.rglob("*")} == before


def test_a_line_that_a_kill_has_lost_is_added_by_a_claim(honest, project, tmp_path):
    """A complete run has no next start."""
    run = tmp_path / "outputs" / honest.parent.name / honest.name
    shutil.copytree(honest, run)
    lines = (run / "chain.jsonl").read_bytes().splitlines(keepends=True)
    (run / "chain.jsonl").write_bytes(b"".join(lines[:-1]))
    output = python(tmp_path, "launcher.runs", "claim", run.name, code=2)
    assert "data.dataset.path=data/train.csv is not here" in output
    shutil.copytree(project / "data", tmp_path / "data")
    python(tmp_path, "launcher.runs", "claim", run.name)
    assert (run / "chain.jsonl").read_bytes() == b"".join(lines)
    assert (run / "claim.json").read_bytes() == (honest / "claim.json").read_bytes()


def test_a_claim_of_four_ranks_is_checked_on_one(project, verifier, honest, tmp_path):
    folder = clone(project, tmp_path / "clone")
    python(folder, "launcher", *RUN, "strategy=ddp", "dispatch.nproc=4")
    run = claimed(folder)
    assert run.name == honest.name
    output = check(verifier, run, "--level=3", "--ranks=1", code=0)
    assert "random states are of 4 ranks, and here are 1" in output


def test_a_forged_metric_is_refuted(honest, verifier, tmp_path):
    run = Path(shutil.copytree(honest, tmp_path / "run"))
    data = json.loads((run / "claim.json").read_text())
    metric = data["predicate"]["metric"]
    metric["value"] = (float.fromhex(metric["value"]) * (1 - 2**-52)).hex()
    (run / "claim.json").write_text(json.dumps(data))
    check(verifier, run, code=0)
    assert "val/loss is" in check(verifier, run, "--level=1", code=1)


def test_weights_of_another_training_are_refuted(honest, verifier, tmp_path):
    """All other states, and the whole chain, are honest."""
    run = Path(shutil.copytree(honest, tmp_path / "run"))
    splice(run, 6)
    data = json.loads((run / "claim.json").read_text())
    weights = weights_digest(run / "checkpoints" / "step-00000006")
    data["subject"][0]["digest"]["sha256"] = weights
    (run / "claim.json").write_text(json.dumps(data))
    output = check(verifier, run, "--level=1", code=1)
    assert "the checkpoint of step 6 is not the one in its chain" in output


def test_a_changed_data_file_is_refuted(project, verifier, tmp_path):
    folder = clone(project, tmp_path / "clone")
    write_rows(folder / "data" / "train.csv", 60, seed=3)
    python(folder, "launcher", *RUN)
    run = claimed(folder)
    assert "data/train.csv is not the file" in check(verifier, run, code=1)
    # A forger may name the public file.
    data = json.loads((run / "claim.json").read_text())
    public = project / "data" / "train.csv"
    text = f"{public.stat().st_size} {digest_file(public)}"
    data["predicate"]["data"]["files"]["data/train.csv"] = text
    (run / "claim.json").write_text(json.dumps(data))
    output = check(verifier, run, "--level=2", "--segments=1", code=1)
    assert "is not what steps" in output


def test_a_spliced_checkpoint_is_found_by_its_segment(honest, verifier, project, tmp_path):
    folder = clone(project, tmp_path / "clone")
    run = folder / "outputs" / honest.parent.name / honest.name
    shutil.copytree(honest, run)
    (run / "claim.json").unlink()
    python(folder, "launcher.runs", "rollback", run.name, "4")
    splice(run, 4)
    (run / "chain.jsonl").unlink()
    # The forger trains on from the spliced state, so all later states follow from it.
    python(folder, "launcher", *RUN)
    claimed(folder)
    output = check(verifier, run, "--level=2", "--segments=3", code=1)
    assert "the state at step 4 is not what steps 2 to 4 make of the state at 2" in output
    digest, segments = Claim.read(run / "claim.json").digest, list(pairwise(STEPS))
    words = [str(number) for number in range(300)]
    chosen = {word: choose(segments, 1, f"{digest} {word}")[0] for word in words}
    found = [word for word in words if chosen[word] == (2, 4)]
    assert 70 < len(found) < 130, "a third of the words"
    missed = next(word for word in words if chosen[word] == (4, 6))
    output = check(verifier, run, "--level=2", "--segments=1", f"--word={missed}", code=0)
    assert "is found with a chance of 1 of 3" in output


def splice(run: Path, step: int) -> None:
    """Put other weights into a checkpoint."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    stored = StoredCheckpoint(folder)
    tensors = {name: stored.read(name) for name in stored.names()}
    name = next(name for name in sorted(tensors) if name.startswith("model/"))
    tensors[name] = torch.zeros_like(tensors[name])
    entry = write_tensors(folder / "shard-00000.safetensors", tensors)
    manifest = Manifest.read(folder)
    files = [entry if file.name == entry.name else file for file in manifest.files]
    Manifest(**{**vars(manifest), "files": files}).write(folder)
