import pytest

from launcher.errors import ConfigError
from launcher.runs.find_runs import find_run, find_runs

IDS = ["1a2b0000", "1a3c0000", "7f000000", "99000000"]


@pytest.fixture
def four(make_run):
    for name, id in zip(("gpt", "gpt", "mlp", "deep/er"), IDS, strict=True):
        make_run(name, id)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("1a2", "1a2b0000"),
        ("mlp", "7f000000"),
        ("gpt/1a3c0000", "1a3c0000"),
        ("deep/er", "99000000"),
    ],
)
def test_a_run_is_named_by(four, outputs, wanted, found):
    assert find_run(wanted, outputs).id == found


def test_a_run_is_named_by_its_folder(four, outputs, monkeypatch):
    assert find_run(str(outputs / "mlp" / "7f000000"), outputs / "elsewhere").name == "mlp"
    monkeypatch.chdir(outputs / "mlp")
    assert find_run("7f000000", outputs).name == "mlp"


@pytest.mark.parametrize("wanted", ["gpt", "1a"])
def test_several_are_meant(four, outputs, wanted):
    with pytest.raises(ConfigError, match="names 2 runs, gpt/1a2b0000, gpt/1a3c0000; write"):
        find_run(wanted, outputs)


def test_the_first_that_began_comes_first_and_runs_are_not_searched(four, outputs):
    inner = outputs / "gpt" / "1a2b0000" / "checkpoints" / "step-00000001"
    inner.mkdir(parents=True)
    (inner / "run.json").write_text("{}")
    assert [run.id for run in find_runs(outputs)] == IDS
