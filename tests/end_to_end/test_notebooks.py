"""Runs from Python: the same as those of the command line, also in a notebook."""

import importlib
import json
import logging
import os
import re
import signal
import sys
from itertools import product
from shlex import split

import hydra
import hydra.version
import nbformat
import pytest
from hydra.core.global_hydra import GlobalHydra
from packaging.version import Version

import launcher
from support import nested, python
from support.git import commit
from support.paths import ROOT
from support.runner import launch, metrics_of, stop_at

RUN = split(
    "model=mlp data=digits model.hidden_dim=8 trainer.max_steps=12 hooks.checkpointing.interval=5"
    " model.dropout=0.2"
)


def test_runs_of_a_program(tmp_path, monkeypatch):
    """Interrupted, resumed, after other runs in the process: the numbers of the command line."""
    monkeypatch.chdir(tmp_path)
    handler, level = signal.getsignal(signal.SIGINT), logging.getLogger().level
    launch(tmp_path / "straight", *RUN, "seed=2", code=0)

    stop = stop_at(7, signum="SIGINT", group=False)
    run = launcher.compose(*RUN, "seed=2", *stop)
    assert (run.state, run.step, run.metrics) == ("new", 0, {})
    assert not list(tmp_path.glob("outputs/*"))
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert (run.state, run.step) == ("preempted", 7)
    assert {"code.diff", "environment.txt"} < {*os.listdir(run.folder)} and not locks(run.folder)
    other = launcher.compose(*RUN, "seed=1")
    other.train()
    run = launcher.compose(*RUN, "seed=2")
    values = run.train()
    assert (run.state, run.step) == ("completed", 12) and run.train() == values == run.metrics
    assert signal.getsignal(signal.SIGINT) is handler and logging.getLogger().level == level

    (folder,) = (tmp_path / "straight").glob("*/*")
    assert folder.name == run.id
    assert metrics_of(folder) == metrics_of(run.folder)
    attempts = json.loads((run.folder / "run.json").read_text())["attempts"]
    assert [each["outcome"] for each in attempts] == ["preempted", "completed"]
    assert sum(each.numel() for each in run.load_model().parameters()) > 0

    sweep = launcher.sweep([*RUN, "seed=1,2", "model.dropout=0.1,0.2"]).train()
    assert len(sweep) == 4 and {run.id, other.id} < {each.id for each in sweep}
    runs = launcher.Runs("outputs")
    assert [row["seed"] for row in runs.rows()] == runs.frame()["seed"].tolist()
    assert runs.plot("train/loss", over="seed")._repr_png_()[1:4] == b"PNG"
    assert "paired t" in repr(runs.test("model.dropout"))
    assert len(launcher.Runs("outputs", "seed=2")) == 2


def locks(folder):
    return [path.name for path in folder.iterdir() if "run.lock" in path.name]


def test_the_jobs_of_a_process_are_those_of_processes_of_their_own(tmp_path):
    """No job finds what another has set, nor misses what an import has done once."""
    words = [*RUN[1:], "model=mlp", "model._target_=support.setting.Setting"]
    swept = ("trainer.deterministic=true,false", "+model.is_double=true,false")
    launch(tmp_path / "sweep", "-m", *words, *swept, code=0)
    for deterministic, is_double in product(("true", "false"), repeat=2):
        own = (f"trainer.deterministic={deterministic}", f"+model.is_double={is_double}")
        launch(tmp_path / "alone", *words, *own, code=0)
    runs = {path.name: metrics_of(path) for path in tmp_path.glob("alone/*/*")}
    assert len(runs) == 4 == len({str(lines) for lines in runs.values()})
    assert {path.name: metrics_of(path) for path in tmp_path.glob("sweep/*/*")} == runs


def test_a_process_trains_one_run_at_a_time(tmp_path, monkeypatch):
    """Two would draw from the same generators, and no error would show it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nested, "errors", errors := [])
    hook = ("+hooks.nested._target_=launcher.FunctionHook",)
    hook += ("+hooks.nested.on_before_step=support.nested.train_other", "hooks.evaluation=null")
    run = launcher.compose(*RUN, "trainer.max_steps=1", *hook)
    run.train()
    assert ["trains another run" in error for error in errors] == [True, True, False]
    assert run.state == "completed" and errors[-1] == "0"
    assert launcher.compose(*nested.OTHER).state == "completed"
    nested.train()


MISTAKES = {
    "a value": (lambda: launcher.compose("optimizer.lr=fast"), "optimizer.lr"),
    "a key": (lambda: launcher.compose("optimizer.lrr=1"), "did you mean optimizer.lr"),
    "a sweep": (lambda: launcher.compose("seed=1,2"), "several values make a sweep"),
    "a flag": (lambda: launcher.compose("-m", "seed=1"), "-m: should be KEY=VALUE"),
    "a list": (lambda: launcher.compose(["seed=1"]), "['seed=1']: should be an override"),
    "a text": (lambda: launcher.sweep("seed=1,2"), "should be a list of overrides"),
    "one of a sweep": (lambda: launcher.sweep(["seed=1,2", "model=x"]), "no option x"),
    "a search": (lambda: launcher.sweep(["hydra/sweeper=optuna"]), "on the command line"),
    "a setting of a search": (lambda: launcher.compose("hpo.seed=1"), "of a search, which needs"),
    "one in a sweep": (lambda: launcher.sweep(["seed=1,2", "hpo=basic"]), "of a search, which"),
    "a folder": (lambda: launcher.compose(config_dir="no/such"), "no such folder"),
    "a job": (lambda: launcher.compose("job=check").train(), "job=check: train"),
    "a dispatch": (lambda: launcher.compose("dispatch=slurm").train(), "use submit"),
    "a sweep elsewhere": (lambda: launcher.sweep(["seed=1,2"]).submit(), "needs dispatch=slurm"),
    "no run": (lambda: launcher.Runs(".").plot(), "no run: nothing has been logged"),
    "no runs": (lambda: launcher.Runs("no/such"), "no such folder of runs"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_sentences(mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    act, said = MISTAKES[mistake]
    with pytest.raises(launcher.ConfigError, match=re.escape(said)):
        act()
    assert list(tmp_path.iterdir()) == []


def test_the_notebook_of_the_page(tmp_path):
    """Executed again, its cells return what it shows.

    The client of its kernel has threads and sockets of its own, which stay in a process of theirs.
    """
    executed = tmp_path / "executed.ipynb"
    make = ROOT / "docs" / "make_notebook.py"
    env = {**os.environ, python.PYTHON: str(python.interpreter())}
    python.run(str(make), str(executed), env=env, cwd=tmp_path, check=True)
    stored, now = (
        nbformat.read(path, as_version=4) for path in (make.with_name("notebook.ipynb"), executed)
    )
    assert [returned(cell) for cell in now.cells] == [returned(cell) for cell in stored.cells]


def returned(cell: nbformat.NotebookNode) -> list[str]:
    """Result of a cell, without addresses, and without digits after the third."""
    outputs = [each for each in cell.get("outputs", []) if each.output_type == "execute_result"]
    texts = [output.data["text/plain"] for output in outputs]
    return [re.sub(r"at 0x\w+|(?<=\.\d{2})\d+", "", text) for text in texts]


def test_a_program_keeps_its_own_hydra(tmp_path, monkeypatch):
    """`launcher.compose` works after `hydra.initialize`, and gives Hydra's state back."""
    (tmp_path / "own.yaml").write_text("width: 4\n")
    monkeypatch.chdir(tmp_path)
    state = GlobalHydra.instance()
    hydra.initialize_config_dir(str(tmp_path), version_base="1.2")
    try:
        mine = GlobalHydra.instance().hydra
        run = launcher.compose(*RUN)
        assert run.id == launcher.compose(*RUN).id
        assert [other.config["seed"] for other in launcher.sweep([*RUN, "seed=1,2"])] == [1, 2]
        with pytest.raises(launcher.ConfigError):
            launcher.compose("nope=1")
        assert GlobalHydra.instance().hydra is mine
        assert hydra.version.getbase() == Version("1.2")
        assert hydra.compose("own", ["width=5"]) == {"width": 5}
    finally:
        state.clear()
        GlobalHydra.instance().clear()


DATA = """
import torch

class Rows:
    fingerprint = {name!r}

    def __init__(self, file):
        pass

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(2), 0
"""


def test_what_is_edited_between_two_calls_counts(tmp_path, monkeypatch, capfd):
    """The process has read the code's commit and the data's fingerprint before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source, file = tmp_path / "rows_of_a_notebook.py", tmp_path / "rows.csv"
    source.write_text(DATA.format(name="first"))
    file.write_text("a")
    commit(tmp_path)
    run = launcher.compose(
        *("model=mlp", "model.num_features=2", "model.num_classes=2", "hooks=[checkpointing]"),
        *("data=custom", "data.dataset._target_=rows_of_a_notebook.Rows", "data.batch_size=8"),
        *(
            f"+data.dataset.file={file}",
            "hooks.checkpointing.best_metric=null",
            "trainer.max_steps=1",
        ),
    )
    run.train()
    os.utime(file, ns=(0, 0))
    run.train()
    assert "Changed since" not in capfd.readouterr().out
    (tmp_path / "other.py").touch()
    commit(tmp_path)
    run.train()
    assert "Changed since it was trained: git.commit" in capfd.readouterr().out
    source.write_text(DATA.format(name="second"))
    importlib.reload(sys.modules["rows_of_a_notebook"])
    with pytest.raises(launcher.ConfigError, match="the training data were 'first'"):
        run.train()


def test_a_class_of_a_cell_is_named_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(launcher.ConfigError) as raised:
        launcher.compose(*RUN, "model._target_=__main__.Live")
    assert "write it to a file (%%writefile)." in str(raised.value)
