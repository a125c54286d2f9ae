"""Parts of Hydra that its users use: other launchers and sweepers, callbacks, and Hydra's state."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper

from launcher.config.compose.hydra_job import hydra_job
from launcher.config.options import main_folder
from support import python
from support.composition import composed, run_of
from support.projects import exit_code, in_project

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_groups")]

PACKAGE = """
import json
import os
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.utils import get_original_cwd


def say(**what):
    with open(Path(get_original_cwd()) / "said.jsonl", "a") as file:
        file.write(json.dumps(what) + "\\n")


class Net:
    def __init__(self, width: int = 4, name: str | None = None, extra: dict | None = None):
        pass


class Job:
    def __init__(self, fails: bool = False, number: int | None = None, folder: str | None = None):
        self.fails, self.settings = fails, {"number": number, "folder": folder}

    def run(self, config):
        node = HydraConfig.get()
        say(
            id=config.run.id,
            dir=config.run.dir,
            seed=config.seed,
            cwd=get_original_cwd(),
            mode=node.mode.name,
            choice=node.runtime.choices.model,
            output_dir=node.runtime.output_dir,
            exists=os.path.isdir(node.runtime.output_dir),
            flag=os.environ.get("MY_FLAG"),
            model=config.plain["model"],
            **self.settings,
        )
        if self.fails:
            raise ValueError("a bug")
        return config.seed / 2


class Mine(Callback):
    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def event(config, **details):
            returned = details.get("job_return")
            say(
                event=name,
                seed=config.seed,
                details=sorted(details),
                status=None if returned is None else returned.status.name,
            )

        return event
"""
FILES = {
    "hydra_users.py": PACKAGE,
    "conf/job/mine.yaml": "_target_: hydra_users.Job\nfails: false\n",
    "conf/job/where.yaml": (
        "_target_: hydra_users.Job\nnumber: ${hydra:job.num}\nfolder: ${hydra:runtime.output_dir}\n"
    ),
    "conf/model/net.yaml": (
        "_target_: hydra_users.Net\nname: ${hydra:runtime.choices.model}-${hydra:runtime.cwd}\n"
    ),
    "conf/hydra/callbacks/mine.yaml": "mine:\n  _target_: hydra_users.Mine\n",
    "conf/experiment/basic.yaml": (
        "# @package _global_\ndefaults:\n"
        "  - override /hydra/launcher: basic\n  - override /hydra/sweeper: basic\n"
    ),
    "conf/own.yaml": (
        "defaults:\n  - config\n  - _self_\n  - override hydra/launcher: basic\n"
        "  - override hydra/sweeper: basic\nseed: 7\n"
    ),
    "more/model/more.yaml": "_target_: hydra_users.Net\nwidth: 9\n",
}


class HalvingSweeper(Sweeper):
    """A sweeper of another package: it asks for one job after the other, and follows the values."""

    def __init__(self, first: float):
        self.value: Any = first

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        for number in range(2):
            job = [*arguments, f"seed={int(self.value)}"]
            (returned,) = self.launcher.launch([job], initial_job_idx=number)
            assert isinstance(returned, JobReturn) and returned.status == JobStatus.COMPLETED
            self.value = returned.return_value


# Hydra builds only what is in this package.
HalvingSweeper.__module__ = "hydra_plugins.halving"
sys.modules["hydra_plugins.halving"] = sys.modules[__name__]
Plugins.instance().register(HalvingSweeper)
ConfigStore.instance().store(
    group="hydra/sweeper",
    name="halving",
    node={"_target_": "hydra_plugins.halving.HalvingSweeper", "first": 8.0},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with in_project(tmp_path_factory.mktemp("project"), FILES) as folder:
        yield folder


@pytest.fixture
def project(folder, monkeypatch):
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    return folder


def said(project: Path, *words: str, code: int = 0) -> list[dict[str, Any]]:
    """The lines that the jobs and the callbacks of a command have written."""
    (project / "said.jsonl").unlink(missing_ok=True)
    assert exit_code("job=mine", "model=net", *words) == code
    file = project / "said.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_users_class_reads_the_state_of_hydra(project):
    (one,) = said(project, "seed=3", "job=where")
    folder = project / "outputs" / "net-text" / one["id"]
    assert one["cwd"] == str(project) and one["mode"] == "RUN" and one["choice"] == "net"
    assert one["model"]["name"] == f"net-{project}"
    assert Path(one["output_dir"]) == Path(one["folder"]) == Path(one["dir"]).absolute() == folder
    assert one["exists"] and not folder.exists()
    assert not HydraConfig.initialized() or HydraConfig.get().mode.name == "RUN"
    jobs = said(project, "-m", "seed=1,2", "job=where")
    assert [(job["number"], job["mode"], job["seed"]) for job in jobs] == [
        (0, "MULTIRUN", 1),
        (1, "MULTIRUN", 2),
    ]
    assert [job["folder"] for job in jobs] == [job["output_dir"] for job in jobs]


@pytest.mark.parametrize("words", [[], ["-m", "hydra/launcher=basic"]])
def test_variables_of_the_job_are_set_and_restored(project, words):
    (job,) = said(project, "+hydra.job.env_set.MY_FLAG=n-${hydra:job.num}", *words)
    assert job["flag"].startswith("n-0" if words else "n-") and "MY_FLAG" not in os.environ


def test_a_copied_variable_of_this_machine_is_set_where_the_job_runs(project, monkeypatch):
    monkeypatch.setenv("MY_FLAG", "here")
    word = "hydra.job.env_copy=[MY_FLAG]"
    config = run_of([word])
    monkeypatch.delenv("MY_FLAG")
    with hydra_job(config):
        assert os.environ["MY_FLAG"] == "here"
    assert "MY_FLAG" not in os.environ
    monkeypatch.setenv("MY_FLAG", "here")
    assert {job["flag"] for job in said(project, "-m", word, "seed=1,2")} == {"here"}


def test_a_configuration_may_be_in_another_folder(project, capsys):
    """`--config-path` takes the place of Launcher's own options."""
    shutil.copytree(main_folder(), project / "whole")
    file = project / "whole" / "config.yaml"
    file.write_text(file.read_text().replace("\nseed: 0\n", "\nseed: 9\n"))
    words = ("--config-path", str(project / "whole"), "--config-dir", "conf")
    (job,) = said(project, *words)
    assert (job["seed"], job["mode"], job["choice"]) == (9, "RUN", "net")
    assert said(project, "--config-path", "nowhere", code=2) == []
    file.write_text("seed: [1\n")
    assert said(project, *words, code=2) == []
    assert "whole/config.yaml" in capsys.readouterr().err


def test_callbacks_are_called_around_runs_and_jobs(project):
    choice = "hydra/callbacks=mine"
    lines = [line for line in said(project, choice) if "event" in line]
    assert [(line["event"], line["status"]) for line in lines] == [
        ("on_run_start", None),
        ("on_job_start", None),
        ("on_job_end", "COMPLETED"),
        ("on_run_end", "COMPLETED"),
    ]
    assert [line["details"] for line in lines] == [
        ["config_name"], ["task_function"], ["job_return"], ["config_name", "job_return"]
    ]  # fmt: skip
    lines = [line for line in said(project, choice, "-m", "seed=1,2") if "event" in line]
    assert [(line["event"], line["seed"]) for line in lines] == [
        ("on_multirun_start", 0),
        *((event, seed) for seed in (1, 2) for event in ("on_job_start", "on_job_end")),
        ("on_multirun_end", 0),
    ]
    lines = [line for line in said(project, choice, "job.fails=true", code=1) if "event" in line]
    assert [line["status"] for line in lines] == [None, None, "FAILED", "FAILED"]


@pytest.mark.parametrize("words", [
    ["hydra/launcher=basic", "optimizer.lr=range(0.2,0.35,0.1)"],
    ["experiment=basic", "seed=1"],
    ["--config-dir", "conf", "--config-name", "own", "seed=1"],
    ["hydra/launcher=basic", "hydra/sweeper=basic", "model.width=5", "optimizer=sgd,muon",
     "optimizer.momentum=0.5"],
])  # fmt: skip
def test_jobs_of_hydras_own_launcher_are_the_same_runs(project, words):
    rest = [word for word in words if not word.startswith("hydra/")]
    ours = said(project, "-m", *rest, "hydra/launcher=dispatch")
    theirs = said(project, "-m", *words)
    assert ours and [job["id"] for job in ours] == [job["id"] for job in theirs]
    assert {job["mode"] for job in theirs} == {"MULTIRUN"}


@pytest.mark.parametrize("launcher", ["dispatch", "basic"])
def test_a_sweeper_of_another_package_gets_the_values_of_its_jobs(project, launcher):
    words = ("hydra/sweeper=halving", f"hydra/launcher={launcher}", "model.width=5")
    jobs = said(project, "-m", *words)
    assert [job["seed"] for job in jobs] == [8, 4]
    assert {job["model"]["width"] for job in jobs} == {5}
    for wrong in ("model.widht=5", "hpo.n_trials=5"):
        assert said(project, "-m", *words, wrong, code=2) == []


def test_a_mistake_is_reported_before_another_launcher_starts_a_job(project, capsys):
    words = ("-m", "hydra/launcher=basic", "seed=1,x", "model.widht=3")
    before = {*project.rglob("*")}
    assert said(project, *words, code=2) == []
    assert capsys.readouterr().err.splitlines() == [
        "model.widht=3: no key model.widht; did you mean model.width=3?",
        "seed='x': should be a whole number from 0 to below 4294967296 (job 2: seed=x).",
    ]
    assert {*project.rglob("*")} <= before, "nothing is written"


@pytest.mark.parametrize("words", [
    ["--config-name", "own"],
    ["hydra.searchpath=[file://{folder}/more]", "model=more"],
    ["-cd", "more", "model=more", "hydra.searchpath=[file://{folder}/conf]"],
])  # fmt: skip
def test_configurations_are_found_where_hydra_finds_them(project, words):
    words = [word.format(folder=project) for word in words]
    (job,) = said(project, *words)
    assert job["model"].get("width", 4) == (9 if "model=more" in words else 4)
    assert job["seed"] == (7 if "own" in words else 0)


@pytest.mark.parametrize(("words", "key", "value"), [
    (["--cfg", "job", "--resolve"], "model.name", "net-{folder}"),
    (["-c", "hydra"], "hydra.runtime.choices.model", "net"),
    (["-c", "all"], "model.name", "${{hydra:runtime.choices.model}}-${{hydra:runtime.cwd}}"),
    (["-c", "job", "-p", "model"], "_target_", "hydra_users.Net"),
    (["-c", "job", "--package", "_global_"], "seed", 4),
])  # fmt: skip
def test_the_configuration_is_printed(words, key, value, project, capsys):
    assert said(project, "seed=4", "model.width=3", *words) == []
    printed = capsys.readouterr()
    tree = yaml.safe_load(printed.out)
    for name in key.split("."):
        tree = tree[name]
    assert printed.err == "" and str(tree) == str(value).format(folder=project)
    assert ("hydra" in yaml.safe_load(printed.out)) == (words[1] in ("hydra", "all"))


@pytest.mark.parametrize("what", ["all", "defaults-tree", "searchpath"])
def test_hydra_describes_the_composition(what, project, capsys):
    assert said(project, "model.width=3", "--info", what) == []
    assert ("net" in capsys.readouterr().out) == (what != "searchpath")
    if what == "searchpath":
        assert said(project, "model.widht=3", "--info", what, code=2) == []


def test_jobs_of_submitit_are_the_same_runs(project):
    """The launcher sends the task to another process."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    (ours,) = said(project, "-m", "seed=1", "model.width=4")
    (project / "said.jsonl").unlink()
    words = ("hydra/launcher=submitit_local", "job=mine", "model=net", "model.width=4")
    words = ("-m", "launcher", "-m", "seed=1", *words)
    children = (("submitit.local._local", 1),)  # its job has the number of its process
    launched = python.start(*words, cwd=project, env=python.forking(), children=children)
    output, _ = launched.communicate()
    assert launched.returncode == 0, output
    theirs = json.loads((project / "said.jsonl").read_text())
    assert (theirs["id"], theirs["mode"]) == (ours["id"], "MULTIRUN")
    assert re.search(rf"^job 1/1 .*{ours['id']} .*: process \d+, ", output, re.MULTILINE), output


UNRESOLVED = {
    "${oc.env:NOPE_X}": "the environment has no variable NOPE_X",
    "${nope.x}": "there is no nope.x",
    "${nofunc:1}": "there is no resolver nofunc; register it in a module of the folder",
}
PLACES = {
    "-m experiment=swept": "hydra.sweeper.params.model.name",
    "-m seed=1,2 hydra.sweeper.max_batch_size={value}": "hydra.sweeper.max_batch_size",
    "-m seed=1,2 hydra/launcher=basic +hydra.launcher.more={value}": "hydra.launcher.more",
    "+hydra.job.env_set.X={value}": "hydra.job.env_set.X",
    "-m seed=1,2 +hydra.job.env_set.X={value}": "hydra.job.env_set.X",
    "hydra/callbacks=mine +hydra.callbacks.mine.more={value}": "hydra.callbacks.mine.more",
    "-m seed=1,2 hydra/callbacks=mine +hydra.callbacks.mine.more={value}": "hydra.callbacks.mine",
}


CASES = [(place, [*UNRESOLVED][number % len(UNRESOLVED)]) for number, place in enumerate(PLACES)]
SWEPT = "# @package _global_\nhydra: {sweeper: {params: {seed: '%s', model.name: '%s'}}}\n"


@pytest.mark.parametrize(("place", "value"), CASES)
def test_interpolations_in_hydras_node_are_one_message(project, capsys, place, value):
    (project / "conf" / "experiment" / "swept.yaml").write_text(SWEPT % ("1,2", value))
    before = {*project.rglob("*")}
    words = [word.replace("{value}", value) for word in place.split(" ")]
    assert said(project, *words, code=2) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(PLACES[place]) and UNRESOLVED[value] in line
    assert {*project.rglob("*")} <= before, "nothing is written"


def test_they_are_resolved(project, monkeypatch):
    monkeypatch.setenv("MY_SEEDS", "3,4")
    text = SWEPT % ("${oc.env:MY_SEEDS}", "${hydra:runtime.cwd}")
    (project / "conf" / "experiment" / "resolved.yaml").write_text(text)
    jobs = said(project, "-m", "experiment=resolved")
    assert [job["seed"] for job in jobs] == [3, 4]
    assert {job["model"]["name"] for job in jobs} == {str(project)}


def test_resolvers_of_a_project_are_in_hydra_plugins(project):
    (project / "hydra_plugins").mkdir(exist_ok=True)
    (project / "hydra_plugins" / "my_resolvers.py").write_text(
        "from omegaconf import OmegaConf\n\n"
        'OmegaConf.register_new_resolver("mul", lambda a, b: a * b)\n'
    )
    words = ("-m", "launcher", "--config-dir", "conf", "job=mine", "model=net", "seed=${mul:2,3}")
    result = python.run(*words, cwd=project, real=True)
    assert result.returncode == 0, result.stderr
    assert json.loads((project / "said.jsonl").read_text().splitlines()[-1])["seed"] == 6


@pytest.mark.parametrize(("value", "more"), [
    ("${nofunc:1}", []), ("${oc.env:NOPE}", ["--package", "model"]),
    ("${nope.x}", ["-p", "run.tag"]), ("${model.width}", []),
])  # fmt: skip
def test_a_configuration_that_does_not_resolve_is_a_message(project, capsys, value, more):
    words = ["--config-dir", "conf", "model=net", "data=digits", f"model.width={value}"]
    assert exit_code(*words, "--cfg", "job", "--resolve", *more) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"model.width={value}: ") and err.count("\n") == 1


def test_a_resolved_configuration_is_that_of_the_run(project, capsys):
    words = ["--config-dir", "conf", "model=net", "data=digits", "model.name=\\${x}"]
    assert exit_code(*words, "--cfg", "job", "--resolve") == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    stored = run_of(composed(words[2:], project / "conf")).stored
    stored["run"]["identity"] = None
    assert shown == stored
    assert shown["model"]["name"] == "\\${x}"


@pytest.mark.parametrize(("key", "text"), [
    ("run.tag", "null"), ("optimizer.fused", "null"), ("trainer.deterministic", "false"),
    ("run.name", "net-digits"), ("seed", "0"),
])  # fmt: skip
def test_the_value_of_a_key_is_printed(project, capsys, key, text):
    words = ["--config-dir", "conf", "model=net", "data=digits", "--cfg", "job", "-p"]
    assert exit_code(*words, key) == 0
    assert capsys.readouterr().out == f"{text}\n"
    assert exit_code(*words, f"{key}.nope") == 2
    assert capsys.readouterr().err.endswith(": the configuration has no such key.\n")
