"""A run folder that is somebody else's: what its stored configuration names does not run."""

import hashlib
import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.checkpoint.files import hash_file
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
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    done = python.run("-m", "launcher", *WORDS, "run.name=theirs", "run.id=foreign", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def foreign(project: Path, place: Path, node: dict[str, Any], model: bool = True) -> Path:
    """The project, with code named in every file of the run that has its configuration or its
    command line.

    Args:
        model: also in the node `model` of the checkpoint.
    """
    project = Path(shutil.copytree(project, place / "project", symlinks=True))
    run = project / RUN
    checkpoint = run / "checkpoints" / "step-00000002"
    with open(run / "evil.npy", "wb") as file:
        pickle.dump(Pickled(), file)
    (run / "evil.py").write_text(f"open({MARKER!r}, 'w').close()\nclass Net: ...\n")
    config = yaml.safe_load((checkpoint / "config.yaml").read_text())
    config["model"] |= {"evil": node} if model else {}
    config["data"] = {**DATA, "dataset": node}
    for group in ("hooks", "tracker"):
        config[group] = {"evil": node, **config.get(group, {})}
    (checkpoint / "config.yaml").write_text(yaml.safe_dump(config))
    manifest = Manifest.read(checkpoint)
    files = [
        hash_file(checkpoint / entry.name) if entry.name == "config.yaml" else entry
        for entry in manifest.files
    ]
    replace(manifest, files=files).write(checkpoint)
    text = ",".join(f"{key}:{value}" for key, value in node.items())
    overrides = [*WORDS, "run.name=theirs", "run.id=foreign", f"+hooks.evil={{{text}}}"]
    record = json.loads((run / "run.json").read_bytes())
    (run / "run.json").write_text(
        json.dumps(record | {"overrides": overrides, "config": flat(config)})
    )
    return project


def content(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in project.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


RUNS, BY_HAND = (
    ("-m", "launcher.runs"),
    ("-m", "launcher", *WORDS, "run.name=theirs", "run.id=foreign"),
)
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
RUNS_WITH_TRUST = [
    ("evaluate", PICKLE),
    ("load_model", PICKLE),
    ("sync", MODULE),
]


def without_trust(words: tuple[str, ...]) -> list[str]:
    return [
        word.replace(", trust=True", "")
        for word in words
        if word not in ("--trust", "job.trust=true")
    ]


@pytest.mark.parametrize(
    ("door", "node"),
    [
        *((door, PICKLE) for door in DOORS),
        ("resume", MODULE),
        ("load_model", MODULE),
        ("sync", MODULE),
    ],
    ids=lambda value: value if isinstance(value, str) else value["_target_"],
)
def test_code_of_a_foreign_run_does_not_run(
    project: Path, tmp_path: Path, door: str, node: dict[str, Any]
) -> None:
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


def test_an_export_reads_the_model_alone(project: Path, tmp_path: Path) -> None:
    """Other nodes of the checkpoint are neither checked nor built."""
    folder = foreign(project, tmp_path, PICKLE, model=False)
    done = python.run(*BY_HAND, "job=export", cwd=folder)
    assert done.returncode == 0 and not (folder / MARKER).exists(), done.stderr


@pytest.mark.parametrize("key", ["run.fork_from", "run.init_from"])
def test_a_start_from_a_foreign_checkpoint_reads_tensors_only(
    project: Path, tmp_path: Path, key: str
) -> None:
    folder = foreign(project, tmp_path, PICKLE)
    source = f"{RUN}/checkpoints/step-00000002"
    done = python.run(
        "-m", "launcher", *WORDS, "trainer.max_steps=3", f"{key}={source}", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / MARKER).exists()


def test_listings_build_nothing(project: Path, tmp_path: Path) -> None:
    folder = foreign(project, tmp_path, PICKLE)
    for verb in ("list", "show", "checkpoints", "compare"):
        words = {"list": [], "compare": ["foreign", "foreign"]}.get(verb, ["foreign"])
        assert "Traceback" not in python.run(*RUNS, verb, *words, cwd=folder).stderr
    assert not (folder / MARKER).exists()


def test_the_own_project_needs_no_trust(tmp_path: Path) -> None:
    """Its own classes, and those that its YAML files name. A class that was typed must be typed
    again."""
    assert python.run("-m", "launcher", "init", "mine", cwd=tmp_path).returncode == 0
    folder, metric = (
        tmp_path / "mine",
        "hooks.evaluation.metrics.acc._target_=torchmetrics.Accuracy",
    )
    train = ("-m", "launcher", "device=cpu", "trainer.max_steps=2", "run.name=own")
    assert python.run(*train, "experiment=first", "run.id=first", cwd=folder).returncode == 0
    for words in (
        (*RUNS, "evaluate", "first"),
        ("-c", "from launcher import load_model; load_model('first')"),
    ):
        done = python.run(*words, cwd=folder)
        assert done.returncode == 0, done.stderr
    more = (
        "+hooks.evaluation.metrics.acc.task=multiclass",
        "+hooks.evaluation.metrics.acc.num_classes=10",
    )
    done = python.run(
        *train, "model=mlp", "data=digits", "run.id=typed", f"+{metric}", *more, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    rejected = python.run(*RUNS, "evaluate", "typed", cwd=folder)
    assert rejected.returncode == 2 and rejected.stderr.endswith(
        f"add --trust, or type {metric}.\n"
    ), rejected.stderr
    done = python.run(*RUNS, "evaluate", "typed", metric, cwd=folder)
    assert done.returncode == 0 and '"val/acc"' in done.stdout, done.stderr
