"""The frozen configuration of a run: what a command made, and what a file of it reads back."""

from dataclasses import FrozenInstanceError

import pytest

from launcher.config.run_config import (
    check,
    from_stored,
    load_job,
    read_tree,
    resolve_node,
    save_job,
)
from launcher.errors import ConfigError
from support.composition import composed, run_of

WORDS = ["model=mlp", "data=digits", "optimizer.lr=${oc.decode:'0.02'}"]


@pytest.fixture
def run():
    return check(composed(WORDS))


def test_it_cannot_be_changed(run):
    with pytest.raises(FrozenInstanceError):
        run.plain = {}


def test_values_are_resolved_and_stay_as_written(run):
    assert run.plain["optimizer"]["lr"] == 0.02
    assert run.written["optimizer"]["lr"] == "${oc.decode:'0.02'}"
    assert "hydra" not in run.plain and run.hydra is not None


def test_names_and_settings_are_of_the_plain_tree(run):
    assert run.name == f"mlp-digits/{run.plain['run']['id']}"
    assert run.folder.path.name == run.run.id
    assert run.trainer.max_steps == run.plain["trainer"]["max_steps"]
    assert run.overrides == WORDS
    assert run.choices["model"] == "mlp"
    assert run.trains and run.continuation is None and run.news == ""


def test_a_copy_has_other_values_and_the_run_keeps_its_own(run):
    paused = run.replace({"trainer.pause_at": 7})
    assert paused.trainer.pause_at == paused.written["trainer"]["pause_at"] == 7
    assert run.trainer.pause_at is None and paused.run == run.run


def test_another_process_reads_the_same(run, tmp_path):
    save_job(tmp_path / "job.yaml", run.stored, run.hydra)
    read = load_job(tmp_path / "job.yaml")
    assert read.plain == run.plain
    assert read.stored == run.stored
    assert read.overrides == run.overrides


def test_a_stored_configuration_needs_no_command(run):
    read = from_stored(read_tree(run.stored_yaml))
    assert read.plain == run.of_the_run | {"run": read.plain["run"]}
    assert read.hydra is None and read.overrides == [] and read.choices == {}


def test_a_node_is_resolved_alone_and_its_error_names_the_key():
    stored = {"seed": 3, "model": {"width": "${seed}"}, "data": {"files": "${sede}"}}
    assert resolve_node(stored, "model") == {"width": 3}
    with pytest.raises(ConfigError, match=r"^data\.files=\$\{sede\}: there is no sede"):
        resolve_node(stored, "data")


def test_all_errors_of_a_command_are_reported_at_once():
    config = composed(["model=mlp", "data=digits", "optimizer.lr=no", "seed=-1"])
    with pytest.raises(ConfigError) as caught:
        check(config)
    assert {message.partition("=")[0] for message in caught.value.messages} == {
        "optimizer.lr",
        "seed",
    }
    # An invalid configuration can be read, for messages and notebooks.
    assert run_of(config).plain["seed"] == -1
