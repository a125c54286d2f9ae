"""A run folder that is somebody else's: what its stored configuration names does not run."""

import hashlib
import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from shlex import split
from typing import Any

import pytest
import yaml

from launcher.checkpoint.durable_files import hash_file
from launcher.checkpoint.manifest import Manifest
from launcher.config.tree import flat
from support import python

WORDS = ("model=mlp", "data=digits", "device=cpu", "model.hidden_dim=8", "trainer.max_steps=2")
RUN = "outputs/theirs/foreign"
MARKER = "marker"


class Pickled:
    """Unpickling it writes the marker."""

    def __reduce__(self) -> Any:
        return open, (MARKER, "w")


PICKLE = {"_target_": "numpy.load", "file": f"{RUN}/evil.npy", "allow_pickle": True}
DATA = {"_target_": "launcher.data.custom.CustomData", "_recursive_": False, "batch_size": 64}
MODULE = {"_target_": "outputs.theirs.foreign.evil.Net"}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    python.run(
        "-m", "launcher", *WORDS, "run.name=theirs", "run.id=foreign", cwd=folder, check=True
    )
    return folder


def foreign(project: Path, place: Path, node: dict[str, Any], model: bool = True) -> Path:
    """The project, with code named in every file of the run that has its configuration or its
    command line, next to the signatures of what they had before.

    Args:
        model: also in the node `model` of the checkpoint.
    """
    project = Path(shutil.copytree(project, place / "project", symlinks=True))
    run = project / RUN
    checkpoint = run / "checkpoints" / "step-00000002"
    with open(run / "evil.npy", "wb") as file:
        pickle.dump(Pickled(), file)
    (run / "evil.py").write_text(f"open({MARKER!r}, 'w').close()\nclass Net: ...\n")
    text = (checkpoint / "config.yaml").read_text()
    config, mark, signature = yaml.safe_load(text), *text.partition("# signature: ")[1:]
    config["model"] |= {"evil": node} if model else {}
    config["data"] = {**DATA, "dataset": node}
    for group in ("hooks", "tracker"):
        config[group] = {"evil": node, **config.get(group, {})}
    (checkpoint / "config.yaml").write_text(yaml.safe_dump(config) + mark + signature)
    manifest = Manifest.read(checkpoint)
    files = [
        hash_file(checkpoint / entry.name) if entry.name == "config.yaml" else entry
        for entry in manifest.files
    ]
    replace(manifest, files=files).write(checkpoint)
    text = ",".join(f"{key}:{value}" for key, value in node.items())
    overrides = [*WORDS, "run.name=theirs", "run.id=foreign", f"+hooks.evil={{{text}}}"]
    record = json.loads((run / "run.json").read_bytes())
    record |= {"overrides": overrides, "config": flat(config)}
    (run / "run.json").write_text(json.dumps(record))
    return project


def content(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in project.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


RUNS = ("-m", "launcher.runs")
BY_HAND = ("-m", "launcher", *WORDS, "run.name=theirs", "run.id=foreign")
DOORS = {
    "evaluate": (*RUNS, "evaluate", "foreign", "--trust"),
    "export": (*RUNS, "export", "foreign", "--trust"),
    "resume": (*RUNS, "resume", "foreign", "trainer.max_steps=3", "--trust"),
    "fork": (*RUNS, "fork", "foreign", "trainer.max_steps=3", "--trust"),
    "replay": (*RUNS, "replay", "foreign", "--trust"),
    "sync": (*RUNS, "sync", "foreign", "--trust"),
    "job=evaluate": (*BY_HAND, "job=evaluate", "job.trust=true"),
    "load_model": ("-c", "from launcher import load_model; load_model('foreign', trust=True)"),
}
"""Commands that build something that a stored configuration names; each has a word that trusts
it."""
RUNS_WITH_TRUST = [("evaluate", PICKLE), ("load_model", PICKLE), ("sync", MODULE)]


def without_trust(words: tuple[str, ...]) -> list[str]:
    words = tuple(word for word in words if word not in ("--trust", "job.trust=true"))
    return [word.replace(", trust=True", "") for word in words]


@pytest.mark.parametrize(
    ("door", "node"),
    [*((door, PICKLE) for door in DOORS), ("load_model", MODULE), ("sync", MODULE)],
    ids=lambda value: value if isinstance(value, str) else value["_target_"],
)
def test_code_of_a_foreign_run_does_not_run(project, tmp_path, door, node):
    folder = foreign(project, tmp_path, node)
    before = content(folder)
    done = python.run(*without_trust(DOORS[door]), cwd=folder)
    target = node["_target_"]
    assert done.returncode == (1 if door == "load_model" else 2), done.stderr
    assert f"_target_={target}: only the stored configuration" in done.stderr
    assert ("Traceback" in done.stderr) == (door == "load_model"), done.stderr
    assert not (folder / MARKER).exists() and content(folder) == before
    if (door, node) in RUNS_WITH_TRUST:
        python.run(*DOORS[door], cwd=folder)
        assert (folder / MARKER).exists(), "it would have run"


def test_an_export_reads_the_model_alone(project, tmp_path):
    """Other nodes of the checkpoint are neither checked nor built."""
    folder = foreign(project, tmp_path, PICKLE, model=False)
    done = python.run(*BY_HAND, "job=export", cwd=folder)
    assert done.returncode == 0 and not (folder / MARKER).exists(), done.stderr


@pytest.mark.parametrize("key", ["run.fork_from", "run.init_from"])
def test_a_start_from_a_foreign_checkpoint_reads_tensors_only(project, tmp_path, key):
    folder = foreign(project, tmp_path, PICKLE)
    source = f"{RUN}/checkpoints/step-00000002"
    words = (*WORDS, "trainer.max_steps=3", f"{key}={source}")
    python.run("-m", "launcher", *words, cwd=folder, check=True)
    assert not (folder / MARKER).exists()


def test_listings_build_nothing(project, tmp_path):
    folder = foreign(project, tmp_path, PICKLE)
    for words in (["list"], ["show", "foreign"], ["checkpoints"]):
        assert python.run(*RUNS, *words, cwd=folder).returncode == 0
    assert not (folder / MARKER).exists()


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A project with a class of its own, a metric that was typed, and a run."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text("import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n")
    words = split(
        "model=supervised model.module._target_=mine.Net +model.module.in_features=64"
        " +model.module.out_features=10"
        " +hooks.evaluation.metrics.acc._target_=torchmetrics.Accuracy"
        " +hooks.evaluation.metrics.acc.task=multiclass"
        " +hooks.evaluation.metrics.acc.num_classes=10"
    )
    python.run(
        "-m", "launcher", *words, "data=digits", "device=cpu", "trainer.max_steps=2",
        "run.name=own", "run.id=first", cwd=folder, check=True
    )  # fmt: skip
    return folder


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ((*RUNS, "evaluate", "first"), 2),
        (("-c", "from launcher import load_model; load_model('first')"), 1),
    ],
)
def test_the_own_runs_need_no_trust_and_those_of_another_key_do(own, tmp_path, command, code):
    folder = Path(shutil.copytree(own, tmp_path / "project", symlinks=True))
    before = content(folder)
    other = {**os.environ, "LAUNCHER_KEY": str(tmp_path / "key")}
    rejected = python.run(*command, cwd=folder, env=other)
    assert rejected.returncode == code, rejected.stderr
    assert "_target_=mine.Net: only the stored configuration" in rejected.stderr
    assert content(folder) == before and not (tmp_path / "key").exists()
    python.run(*command, cwd=folder, check=True)


def test_an_export_is_signed_if_its_checkpoint_is(own, tmp_path):
    folder = Path(shutil.copytree(own, tmp_path / "project", symlinks=True))
    assert python.run(*RUNS, "export", "first", cwd=folder).returncode == 0
    load = "from launcher import load_model; load_model('outputs/own/first/export')"
    assert python.run("-c", load, cwd=folder).returncode == 0
    file = folder / "outputs/own/first/export/config.yaml"
    (folder / "other.py").write_text((folder / "mine.py").read_text())
    file.write_text(file.read_text().replace("mine.Net", "other.Net"))
    changed = python.run("-c", load, cwd=folder)
    assert "_target_=other.Net: only the stored configuration" in changed.stderr, changed.stderr


def test_a_run_of_stock_parts_needs_no_trust(project, tmp_path):
    folder = Path(shutil.copytree(project, tmp_path / "project", symlinks=True))
    other = {**os.environ, "LAUNCHER_KEY": str(tmp_path / "key")}
    for words in (
        (*RUNS, "evaluate", "foreign"),
        ("-c", "from launcher import load_model; load_model('foreign')"),
    ):
        python.run(*words, cwd=folder, env=other, check=True)
