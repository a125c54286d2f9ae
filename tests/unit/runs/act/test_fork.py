"""The command line of a fork, and its parsing."""

import pytest

from launcher.errors import ConfigError
from launcher.runs.act.fork import fork_command
from launcher.runs.find_runs import find_run
from support.stores import CheckpointStore, save

OVERRIDES = (
    *("model=mlp", "optimizer.lr=0.1", "run.fork_from=other/3", "trainer.pause_at=5"),
    "run.init_from=x",
)


@pytest.fixture
def run(make_run, outputs):
    save(CheckpointStore(make_run("mlp", "12345e67", overrides=OVERRIDES).checkpoints), 10)
    return find_run("12345e67", outputs)


def test_the_fork_has_the_words_of_its_source_but_those_of_its_start(run, outputs):
    assert fork_command(run, ["optimizer.lr=0.2"]) == [
        "model=mlp", "optimizer.lr=0.1", "run.name=mlp", f"paths.outputs={outputs}",
        "run.fork_from=12345e67/10", "optimizer.lr=0.2",
    ]  # fmt: skip


def test_a_fork_elsewhere_names_the_folder_of_the_checkpoint(run, outputs, tmp_path):
    outputs.rename(tmp_path / "a, b")
    run = find_run("12345e67", tmp_path / "a, b")
    words = fork_command(run, ["paths.outputs=/elsewhere"])
    assert f"run.fork_from='{tmp_path}/a, b/mlp/12345e67/checkpoints/step-00000010'" in words
    assert [word for word in words if word.startswith("paths")] == ["paths.outputs=/elsewhere"]


def test_a_stored_command_line_that_names_code_is_not_forked(run):
    run.overrides.append("+hooks.x._target_=numpy.load")
    with pytest.raises(ConfigError, match=r"^hooks\.x\._target_=numpy\.load: only the stored"):
        fork_command(run, [])
    assert "+hooks.x._target_=numpy.load" in fork_command(run, [], trust=True)
