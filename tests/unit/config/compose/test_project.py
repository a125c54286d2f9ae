"""A project's `conf/config.yaml`: its own defaults, below the preset and the command line."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra.types import RunMode

from launcher.config.compose.composer import command
from launcher.config.options import own_folder, project_file
from launcher.config.run_config import RunConfig
from launcher.errors import ConfigError
from support.paths import ROOT
from support.projects import exit_code, in_project

PACKAGE = """
class Net:
    def __init__(self, width: int = 4, depth: int = 1):
        pass
"""
FILES = {
    "defaults_package.py": PACKAGE,
    "conf/model/net.yaml": "_target_: defaults_package.Net\nwidth: 4\n",
    "conf/experiment/small.yaml": (
        "# @package _global_\ndefaults:\n  - override /optimizer: muon\nseed: 20\n"
    ),
    "conf/db/mysql.yaml": "driver: mysql\n",
}
FILE = Path("conf/config.yaml")
WAY_OUT = (
    "; correct it, or begin it with the line `# launcher: ignore` if it is another program's, or"
    " choose another folder by --config-dir=FOLDER."
)


@pytest.fixture(autouse=True)
def project(tmp_path):
    with in_project(tmp_path, FILES) as folder:
        yield folder


def composed(words: str = "", folder: str | None = "conf") -> RunConfig:
    with command(shlex.split(words), folder, mode=RunMode.RUN) as typed:
        return typed.run()


def message(words: str = "", folder: str = "conf") -> str:
    with pytest.raises(ConfigError) as raised:
        composed(words, folder)
    (text,) = raised.value.messages
    return text


CASES: list[tuple[str, str]] = [
    ("seed: 7", "seed=7"),
    ("defaults: [{model: net}, _self_]\nmodel: {width: 5}", "model=net model.width=5"),
    ("defaults: [_self_, {override model: net}]\nseed: 1", "model=net seed=1"),
    ("defaults: [{override /model: net}, {data: digits}]", "model=net data=digits"),
    ("defaults: [{hooks: [default, ema]}, {scheduler: null}]", "hooks=[default,ema] ~scheduler"),
    ("size: 6\nmodel: {hidden_dim: '${size}'}", "+size=6 'model.hidden_dim=${size}'"),
    ("defaults: [{model: mlp}]\nmodel: {dropout: 0.1}", "model=mlp model.dropout=0.1"),
    ("defaults: [{hpo: default}, {trainer: default}]\ntrainer: {max_steps: 9}",
     "trainer.max_steps=9"),
    ("", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), CASES)
def test_they_are_the_same_values_typed(text, words):
    base = "" if "model=" in words else "model=mlp"
    typed = composed(f"{base} data=digits {words}")

    FILE.write_text(text)
    run = composed(f"{base} data=digits")

    assert run.run.id == typed.run.id
    assert run.plain == typed.plain
    # The command line and a preset come after them.
    assert composed(f"{base} data=digits seed=3").seed == 3
    assert composed(f"{base} data=digits experiment=small").seed == 20


def test_a_preset_and_the_command_line_choose_after_them():
    FILE.write_text("defaults: [{model: net}, {data: digits}, {optimizer: sgd}]")

    optimizers = [
        composed(words).plain["optimizer"]["_target_"].rpartition(".")[2]
        for words in ("", "experiment=small", "experiment=small optimizer=adamw")
    ]

    assert optimizers == ["sgd", "muon", "adamw"]


def test_they_are_of_each_command(project, capsys):
    FILE.write_text("defaults: [{model: net}, {data: digits}]\nseed: 7\n")
    assert own_folder() == Path("conf")
    for words in (["--cfg", "job"], ["--config-dir", "conf", "--cfg", "job"]):
        assert exit_code(*words, "-p", "seed") == 0
        assert capsys.readouterr().out == "7\n"
    with command(["seed=1,2", "run.tag=a"], "conf", mode=RunMode.MULTIRUN) as typed:
        jobs = [typed.job(job) for job in typed.expand()]
    assert [(job.seed, job.plain["model"]["_target_"]) for job in jobs] == [
        (1, "defaults_package.Net"), (2, "defaults_package.Net")
    ]  # fmt: skip
    # Nothing of them is left for the next command.
    assert composed("model=mlp data=digits", None).seed == 0


def test_a_file_alone_makes_a_folder_of_options(project):
    for file in (project / "conf").rglob("*.yaml"):
        file.unlink()
    for folder in ("model", "experiment", "db"):
        (project / "conf" / folder).rmdir()
    assert own_folder() is None
    FILE.write_text("seed: 7")
    assert own_folder() == Path("conf")


def test_what_does_not_fit_is_one_message():
    FILE.write_text(
        "defaults: [{db: mysql}, {model: resnet}, {override hydra/job_logging: colorlog},"
        " {experiment: small}]\nlr: 0.1\nserver: {port: 3}\nhydra: {searchpath: [a]}\n"
    )
    assert message() == (
        "conf/config.yaml: does not fit Launcher, which composes it into each run (no group db, no"
        " option model=resnet, hydra/job_logging is Launcher's own, experiment is for the command"
        " line, no key lr, no key server, hydra.searchpath is for the command line)" + WAY_OUT
    )
    FILE.write_text(f"# launcher: ignore\n{FILE.read_text()}")
    assert composed("model=net data=digits").seed == 0


@pytest.mark.parametrize(("text", "words", "says"), [
    ("trainer: {max_stepz: 3}\nseed: x", "model=mlp",
     "trainer.max_stepz=3: "),
    ("model: {width: 5}", "model=mlp", "model.width=5: MLP takes no width"),
    ("hydra: {run: {dir: x}}", "model=mlp", "hydra.run.dir='x': cannot be changed"),
    ("seed: [1", "", "cannot be read: while parsing a flow sequence in "),
    ("defaults: mysql", "model=mlp", "(defaults should be a list)"),
    ("- a", "", "should have keys, such as `seed: 1`."),
    ("model: {width: '${oc.env:NOPE_WIDTH}'}", "model=net", "no variable NOPE_WIDTH"),
])  # fmt: skip
def test_a_mistake_names_the_file(text, words, says):
    FILE.write_text(text)
    found = message(f"data=digits {words}")
    assert found.startswith("conf/config.yaml: ") and says in found


def test_a_mistake_on_the_command_line_is_not_the_files():
    FILE.write_text("model: {width: 5}")
    assert message("model=mlp data=digits model.width=6") == "model.width=6: MLP takes no width."
    FILE.write_text("seed: 3")
    assert message("model=mlp data=digits seed=x").startswith("seed='x': should be")


def test_launchers_own_file_is_not_a_projects(project, monkeypatch):
    assert project_file(ROOT / "conf") is None
    monkeypatch.chdir(ROOT)
    assert own_folder() is None
    assert composed("model=mlp data=digits", str(ROOT / "conf")).seed == 0


@pytest.mark.parametrize("flag", ["--config-dir", "--config-path"])
@pytest.mark.parametrize(("place", "extra"), [
    ("outputs/net/abc/.hydra", ["--config-name", "config"]),
    ("outputs/net/abc", ["hydra.run.dir=null"]),
    ("copy", []),
])  # fmt: skip
def test_a_stored_configuration_is_answered_by_what_to_type(project, capsys, flag, place, extra):
    stored: Any = composed("model=net data=digits seed=3").stored_yaml
    for folder in (project / "outputs/net/abc/.hydra", project / "copy"):
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(stored)
    record = '{"state": "completed", "overrides": ["model=net", "run.note=a b"]}'
    (project / "outputs/net/abc/run.json").write_text(record)
    before = {*project.rglob("*")}
    for path in (place, str(project / place)):
        assert exit_code(flag, path, *extra) == 2
        text = capsys.readouterr().err
        begin = f"{flag}={path}: is the stored configuration of a run, and no folder of options; "
        assert text.startswith(begin) and text.count("\n") == 1
        if place == "copy":
            assert text.endswith("repeat the command of that run.\n")
        else:
            assert "runs resume " in text
            assert "`python -m launcher model=net 'run.note=a b'`" in text
    assert {*project.rglob("*")} == before, "nothing is written"


@pytest.mark.parametrize(("path", "says"), [
    ("nowhere", "there is no nowhere/config.yaml"),
    ("conf", "Hydra looks for it among our files"),
    ("{here}/conf", "is not all of Launcher's configuration"),
])  # fmt: skip
def test_a_config_path_without_launchers_configuration_is_rejected(project, capsys, path, says):
    FILE.write_text("seed: 1")
    before = {*project.rglob("*")}
    assert exit_code("--config-path", path.format(here=project)) == 2
    assert says in capsys.readouterr().err
    assert {*project.rglob("*")} == before, "nothing is written"
