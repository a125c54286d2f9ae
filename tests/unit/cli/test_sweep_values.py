"""Each job of a sweep has the values that were typed, or the command is rejected."""

import pytest
from hydra.types import RunMode

from launcher.cli.sweep import check_jobs
from launcher.config.compose.composer import command
from launcher.config.compose.grid import list_values
from launcher.config.compose.overrides import parse
from launcher.config.tree import get
from launcher.dispatch.jobs import Job
from launcher.errors import ConfigError
from support.projects import in_project

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_groups")]

PACKAGE = """
class Net:
    def __init__(self, width: int = 4, opts: dict | None = None, choice: str | None = None):
        pass


class Only:
    def __init__(self, depth: int = 1):
        pass
"""
PRESET = "# @package _global_\ndefaults:\n  - override /model: {model}\n{more}"
FILES = {
    "values_package.py": PACKAGE,
    "conf/model/net.yaml": "_target_: values_package.Net\nwidth: 4\n",
    "conf/model/only.yaml": "_target_: values_package.Only\ndepth: 1\n",
    "conf/model/only2.yaml": "_target_: values_package.Only\ndepth: 2\n",
    "conf/model/chosen.yaml": (
        "_target_: values_package.Net\nchoice: ${hydra:runtime.choices.optimizer}\n"
    ),
    "conf/experiment/a.yaml": PRESET.format(model="net", more=""),
    "conf/experiment/b.yaml": PRESET.format(model="net", more="seed: 5\n"),
    "conf/experiment/search.yaml": PRESET.format(
        model="net", more="  - override /hydra/sweeper: optuna\nhpo: {n_trials: 3}\n"
    ),
    "conf/experiment/basic.yaml": PRESET.format(
        model="net", more="  - override /hydra/sweeper: basic\n"
    ),
    "conf/experiment/params.yaml": PRESET.format(
        model="net", more="hydra: {sweeper: {params: {seed: '1,2', model.width: '5,6'}}}\n"
    ),
}


@pytest.fixture(scope="module", autouse=True)
def project(tmp_path_factory):
    with in_project(tmp_path_factory.mktemp("project"), FILES):
        yield


def jobs_of(words: str) -> list[Job]:
    """The jobs of a sweep."""
    with command(words.split(), "conf", mode=RunMode.MULTIRUN) as typed:
        return check_jobs(typed, typed.expand())


@pytest.mark.parametrize(("words", "key", "expected"), [
    # The default options do not have the key.
    ("optimizer=sgd,muon optimizer.momentum=0.5", "optimizer.momentum", [0.5, 0.5]),
    ("optimizer.momentum=0.5 optimizer=sgd,muon", "optimizer.momentum", [0.5, 0.5]),
    ("optimizer=sgd,muon optimizer.momentum=0.5,0.9", "optimizer.momentum", [0.5, 0.9] * 2),
    ("model=only,only2 model.depth=3", "model.depth", [3, 3]),
    ("optimizer=sgd,muon ~optimizer.nesterov", "optimizer.nesterov", [None, None]),
    ("experiment=a,b model.opts.x=1", "model.opts", [{"x": 1}] * 2),
    # Mappings of one key are merged.
    ("model=net seed=1,2 +model.opts={x:1} +model.opts={y:2}", "model.opts.y", [2, 2]),
    ("model=net +model.opts={x:1},{x:2} seed=1", "model.opts", [{"x": 1}, {"x": 2}]),
    # The command line replaces what a preset sweeps over.
    ("experiment=params model.width=9", "model.width", [9, 9]),
    ("experiment=basic seed=1,2", "seed", [1, 2]),
    ("model=chosen optimizer=sgd,muon", "model.choice", ["sgd", "muon"]),
])  # fmt: skip
def test_each_job_has_the_values_of_the_command(words, key, expected):
    assert [get(job.plain, key) for job in jobs_of(words)] == expected


@pytest.mark.parametrize(("values", "expected"), [
    ("range(0.1,0.5,0.1)", "0.1 0.2 0.3 0.4"), ("range(0.3,0.9,0.3)", "0.3 0.6"),
    ("range(0.9,0,-0.3)", "0.9 0.6 0.3"), ("range(1e-4,4e-4,1e-4)", "0.0001 0.0002 0.0003"),
    ("range(1,6,2)", "1 3 5"),
])  # fmt: skip
def test_the_numbers_of_a_range_are_those_that_are_typed(values, expected):
    assert list_values(parse(f"seed={values}")) == expected.split()


@pytest.mark.parametrize(("words", "sentence"), [
    ("seed=1,2 seed=3", "seed=3: seed has values already (seed=1,2); give all in one place."),
    ("model=net +model.opts={x:1},{x:2} +model.opts={y:3},{y:4}", "model.opts has values already"),
    ("hydra/sweeper=optuna seed=1,2 seed=3,4", "seed=3,4: seed has values already (seed=1,2)"),
    ("model=net,only model.depth=3", "no key model.depth; model=only, only2 have it"),
    ("optimizer=sgd,adam optimizer.momentum=0.5", "(job 2: optimizer=adam)."),
    ("hydra/launcher=basic,dispatch", "Hydra's own keys cannot be swept."),
    ("model=net model.opts={x:1} model.opts={y:2} seed=1,2", "has no key y; set it alone"),
    ("experiment=search,a", "hydra/sweeper=optuna: an option that is swept cannot choose it"),
    ("optimizer.lr=interval(1,2)", "has no list of values"),
])  # fmt: skip
def test_a_sweep_that_would_drop_values_is_rejected(words, sentence):
    with pytest.raises(ConfigError) as caught:
        jobs_of(words)
    assert any(sentence in message for message in caught.value.messages)
