"""A run is named by its configuration."""

import re
from functools import cache

import pytest

from launcher.config.run_config import from_stored
from launcher.hooks.base import BaseHook
from launcher.hooks.early_stopping import EarlyStoppingHook
from support.composition import composed, run_of
from support.paths import ROOT


@cache
def id_of(*overrides: str) -> str:
    return str(composed(overrides).run.id)


def test_the_id_is_twelve_hex_digits_and_the_folder_is_made_of_it():
    config = composed()
    assert len(config.run.id) == 12 and int(config.run.id, 16) >= 0
    assert config.run.name == "gpt-text"
    assert config.run.dir == config.hydra.run.dir == f"outputs/gpt-text/{config.run.id}"
    assert f"{config.hydra.sweep.dir}/{config.hydra.sweep.subdir}" == config.run.dir


@pytest.mark.parametrize("override", [
    "hooks.logging.interval=7", "~hooks.progress", "run.sweep=s", "run.resume=must",
    "hooks=[default,memory,throughput,gradients,profiler,watchdog,nan_report,samples]",
    "job=evaluate",
])  # fmt: skip
def test_keys_that_cannot_change_the_numbers_are_not_hashed(override):
    assert id_of(override) == id_of()


STOPPING = "hooks=[default,early_stopping]"


@pytest.mark.parametrize("override", [STOPPING, "hooks=[default,skip_spikes]"])
def test_hooks_that_steer_training_are_hashed(override):
    assert id_of(override) != id_of()


@pytest.mark.parametrize(("override", "metric"), [
    ("hooks.evaluation.interval=7", "val/loss"), ("~hooks.evaluation", "val/loss"),
    ("hooks.evaluation.at_start=false", "val/accuracy"), ("hooks.logging.interval=7", "train/loss"),
    ("hooks.logging.sync=false", "train/loss"),
])  # fmt: skip
def test_settings_that_measure_a_steering_metric_are_in_the_identity(override, metric):
    steered = (STOPPING, f"hooks.early_stopping.metric={metric}")
    assert id_of(*steered, override) != id_of(*steered)
    assert id_of(STOPPING, "hooks.progress.interval=7") == id_of(STOPPING)


def test_a_schedule_that_follows_a_metric_makes_what_measures_it_count():
    plateau = ("scheduler=plateau",)
    assert id_of(*plateau, "hooks.evaluation.interval=7") != id_of(*plateau)
    assert id_of(*plateau, "hooks.logging.interval=7") == id_of(*plateau)


class Patient(EarlyStoppingHook):
    """A hook of a user's own that steers, as the class that it extends does."""


@pytest.mark.parametrize(("target", "steers"), [("Patient", True), ("Watching", False)])
def test_a_hook_says_itself_whether_a_metric_steers_training(target, steers):
    """Not the spelling of a key: a model with a parameter `metric`, or a hook that only watches
    one, steers nothing."""
    own = (f"+hooks.own._target_={__name__}.{target}", "+model.metric=val/loss")
    changed = id_of(*own, "hooks.evaluation.interval=7") != id_of(*own)
    assert changed == steers


class Watching(BaseHook):
    def __init__(self, metric: str = "val/loss"):
        self.metric = metric


def test_the_content_of_deepspeeds_file_counts_and_its_path_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def written(file: str, text: str, spelling: str | None = None) -> str:
        (tmp_path / file).write_text(text)
        id_of.cache_clear()
        return id_of("strategy=deepspeed", f"strategy.config_file={spelling or file}")

    first = written("a.json", '{"zero_optimization": {"stage": 1}, "fp16": {"loss_scale": 0}}')
    assert first == written(
        "b.json", '{"fp16": {"loss_scale": 0}, "zero_optimization":  {"stage": 1}}'
    )
    assert first == written(
        "b.json", (tmp_path / "a.json").read_text(), spelling=f"{tmp_path}/b.json"
    )
    assert first != written("a.json", '{"zero_optimization": {"stage": 3}}')


def test_a_tag_is_the_same_as_text_and_as_number():
    assert id_of("run.tag=1") == id_of("run.tag='1'") != id_of("run.tag=2")


def test_the_user_may_edit_what_counts():
    without_seed = "run.identity_exclude=[job,run,hydra,seed]"
    assert id_of(without_seed, "seed=1") == id_of(without_seed, "seed=2")


def test_a_value_that_depends_on_the_run_folder_is_no_circle():
    first = id_of("+trainer.folder=${run.dir}", "paths.outputs=a")
    assert first == id_of("+trainer.folder=${run.dir}", "paths.outputs=b")
    assert id_of("+trainer.link=${trainer.folder}", "+trainer.folder=${run.dir}") not in (
        first,
        id_of(),
    )


def test_the_name_is_the_experiment_or_the_choices():
    assert composed(["model=mlp", "data=digits"]).run.name == "mlp-digits"
    assert composed(["experiment=digits_mlp"]).run.name == "digits_mlp"
    assert composed(["experiment=digits_mlp", "run.name=mine"]).run.name == "mine"


def test_a_stored_configuration_keeps_name_and_id():
    run = run_of(["model=mlp", "data=digits"])
    again = from_stored(run.stored, run.hydra)
    assert (again.run, again.plain, again.stored) == (run.run, run.plain, run.stored)
    assert run.name == f"mlp-digits/{id_of('model=mlp', 'data=digits')}"


def cases() -> list[tuple[str, bool]]:
    rows = re.findall(
        r"^\|[^|]+\| (yes|no) \| `([^`]+)` \|$",
        (ROOT / "docs" / "naming.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 16
    return [(override, counts == "yes") for counts, override in rows]


@pytest.mark.slow
@pytest.mark.parametrize(("override", "counts"), cases())
def test_the_table_of_what_counts_is_true(override, counts):
    model = ("model=gpt", "model.dropout=0")
    assert (id_of(*model, override) != id_of(*model)) == counts
