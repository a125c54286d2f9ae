"""Completion: what a shell gets, for options, keys, values and flags."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli.completion import SCRIPT, answer, candidates, request_of


@pytest.fixture(autouse=True)
def own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with options of its own in conf/, and more in elsewhere/."""
    for file in ("conf/data/shapes.yaml", "elsewhere/model/mine.yaml"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(
            "defaults: [custom]\n" if "data" in file else "_target_: torch.nn.Linear\n"
        )
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("model=g", ["model=gpt "]),
        ("data=s", ["data=shapes ", "data=synthetic "]),
        ("--config-dir elsewhere model=m", ["model=mine ", "model=mlp "]),
        ("--config-dir=elsewhere model=mi", ["model=mine "]),
        ("--config-dir els", ["elsewhere/"]),
        ("hooks=[default,ea", ["hooks=[default,early_stopping"]),
        ("~sch", ["~scheduler ", "~scheduler."]),
        ("optimizer=sgd optimizer.mo", ["optimizer.momentum="]),
        ("optimizer.mo", []),
        (
            "trainer.max_c",
            ["trainer.max_consecutive_none_losses=", "trainer.max_consecutive_skipped_steps="],
        ),
        ("run.resu", ["run.resume="]),
        ("see", ["seed="]),
        ("device=c", ["device=cpu ", "device=cuda "]),
        ("trainer.deterministic=", ["trainer.deterministic=true ", "trainer.deterministic=false "]),
        ("--help opti", ["optimizer ", "optimizer."]),
        ("--cf", ["--cfg "]),
        ("--cfg ", ["job ", "hydra ", "all "]),
        ("ini", ["init "]),
        ("nothing_like_it", []),
    ],
)
def test_candidates(line: str, expected: list[str]) -> None:
    *words, current = f"launcher {line}".split(" ")
    assert sorted(candidates(words, current)) == sorted(expected)


def test_bash_replaces_what_follows_its_last_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_LINE", "launcher model=g and more")
    monkeypatch.setenv("COMP_POINT", str(len("launcher model=g")))
    assert answer("query=bash") == "gpt \n"
    assert answer("query=zsh") == "model=gpt \n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-sc", "install=bash"], "install=bash"),
        (["--shell-completion=query=zsh"], "query=zsh"),
        (["-sc", "install=fish"], None),
        (["model=gpt"], None),
    ],
)
def test_other_shells_are_left_to_hydra(words: list[str], expected: str | None) -> None:
    assert request_of(words) == expected


def test_the_script_completes_in_bash() -> None:
    """A real bash, for `python -m launcher`, and for a Python that runs something else."""
    assert "query=SHELL" in SCRIPT
    test = """
        eval "$(python -m launcher -sc install=bash)"
        for line in "python -m launcher data=s" "python train.py data=s"; do
            COMP_LINE=$line COMP_POINT=${#line}; _launcher_complete; echo "${COMPREPLY[*]}"
        done
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", test], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.stdout == "shapes  synthetic \n\n", done.stderr
