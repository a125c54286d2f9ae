"""Rules that join several keys, on configurations as they are resolved."""

import signal
from dataclasses import dataclass
from typing import Any

import pytest

from launcher.config.options import own_target
from launcher.config.schema.checks import (
    checkpointing,
    no_weights,
    parse_signal,
    warmup_issue,
)
from launcher.config.schema.validate import crosschecks
from launcher.data.base import DataSource
from launcher.errors import ConfigError
from launcher.types import PositiveInt
from support.composition import composed, run_of, sentences, validate

STARTS = ("run.init_from", "run.fork_from")


def issues(*overrides: str, **changes: Any) -> list[str]:
    """The errors of a configuration whose nodes are changed after it was resolved."""
    return [str(issue) for issue in crosschecks(run_of(overrides).plain | changes)]


@pytest.mark.parametrize(
    ("overrides", "issue"),
    [
        (["dispatch.nproc=3"], "data.batch_size=64: is not divisible by 3 ranks"),
        (["dispatch.nproc=3", "data.batch_size=60"], None),
        (["strategy=none", "dispatch.nproc=2"], "strategy=none: uses one rank, and gets more"),
        (["dispatch=slurm", "dispatch.nodes=1-3"], "dispatch.nodes=1-3: data.batch_size=64 is not"),
        (["dispatch=slurm", "dispatch.nodes=1-2"], None),
        (["scheduler.warmup_steps=9", "trainer.max_steps=3"], "the run has only 3 steps"),
        (["trainer.pause_at=2", "~hooks.checkpointing"], "trainer.pause_at=2: needs hooks.check"),
        (["run.resume=must", "~hooks.checkpointing"], "run.resume=must: needs hooks.checkpointing"),
        (["run.fork_without=[ema]"], "is for a fork; set run.fork_from too"),
        (["hooks.checkpointing.exit_signals=[KILL]"], "is not a signal that a process can handle"),
    ],
)
def test_keys_that_exclude_each_other_are_one_issue(overrides, issue):
    words = ["model=mlp", "data=digits", "data.batch_size=64", *overrides]
    found = issues(*words)
    assert len(found) == (issue is not None)
    assert issue is None or issue in found[0]


@dataclass(kw_only=True, eq=False)
class Rows(DataSource):
    skip: int = 10


@dataclass(kw_only=True, eq=False)
class Ranges(DataSource):
    skip: list[list[int]] | None = None


class Given(DataSource):
    def __init__(self, batch_size, skip=3):
        super().__init__(batch_size=batch_size)
        self.skip = skip


class Passed(DataSource):
    def __init__(self, batch_size: int, skip: list[list[PositiveInt]] | None = None):
        super().__init__(batch_size=batch_size, skip=skip)


@dataclass(kw_only=True, eq=False)
class More(DataSource):
    size: int = 10


class Dataset:
    def __init__(self, skip: int = 3):
        self.skip = skip


@pytest.mark.parametrize(
    ("name", "keys", "value"),
    [
        ("Rows", {}, "10"),
        ("Rows", {"skip": 4}, "4"),
        ("Ranges", {"skip": [[1, 2]]}, "[[1,2]]"),
        ("Given", {}, "3"),
        ("Passed", {"skip": [[1, 2]]}, None),
        ("More", {"skip": [[1, 2]]}, None),
        ("Dataset", {}, None),
    ],
)
@pytest.mark.parametrize("is_part", [False, True])
def test_a_source_has_no_other_key_with_the_name_of_the_steps_to_skip(name, keys, value, is_part):
    words = ["model=mlp", "data=digits"]
    node = {"_target_": f"{__name__}.{name}", "batch_size": 8, **keys}
    path = "data.sources.web" if is_part else "data"
    found = issues(*words, data={"sources": {"web": node}} if is_part else node)
    if value is None:
        assert found == []
    else:
        (message,) = found
        assert message.startswith(f"{path}.skip={value}: {name} has a key of its own")


def test_a_job_without_an_optimizer_has_no_rules_about_training():
    words = ["model=mlp", "data=digits", "data.batch_size=64", "dispatch.nproc=3"]
    assert len(issues(*words)) == 1
    job = {"_target_": own_target("job", "evaluate")}
    assert issues(*words, job=job) == []


def test_the_hook_that_saves_is_known_by_its_class_under_any_name():
    node = {"_target_": "launcher.hooks.checkpointing.CheckpointingHook", "interval": 3}
    other = {"_target_": "launcher.hooks.ema.EmaHook"}
    assert checkpointing({"other": other, "mine": node}) == node
    assert checkpointing({"other": other}) is None


@pytest.mark.parametrize(
    ("steps", "ratio", "total", "is_rejected"),
    [(5, 0.1, 9, True), (5, None, 4, True), (5, None, 5, False), (5, None, None, False)],
)
def test_a_warm_up_fits_the_run_and_is_set_once(steps, ratio, total, is_rejected):
    assert (warmup_issue(steps, ratio, total) is not None) == is_rejected


@pytest.mark.parametrize("value", ["SIGUSR1", "USR1", "usr1", int(signal.SIGUSR1)])
def test_a_signal_has_a_name_or_a_number(value):
    assert parse_signal(value) == signal.SIGUSR1


@pytest.mark.parametrize("value", ["NOPE", 4000])
def test_other_texts_and_numbers_are_no_signal(value):
    assert parse_signal(value) is None


def test_a_pickle_is_not_read_and_the_message_converts_it(tmp_path):
    (tmp_path / "model.pt").touch()
    issue = no_weights(tmp_path / "model.pt")
    assert issue is not None and "save_file" in issue
    assert no_weights(tmp_path) == issue
    (tmp_path / "model.safetensors").touch()
    assert no_weights(tmp_path) is None


def test_files_must_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentences("data.files=corpus/*.txt") == [
        f"data.files='corpus/*.txt': matches no file (looked in {tmp_path})."
    ]
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "one.txt").write_text("text")
    assert sentences("data.files=corpus/*.txt") == []
    assert sentences("data.files=[corpus/one.txt,corpus/two.txt]") == [
        f"data.files='corpus/two.txt': matches no file (looked in {tmp_path})."
    ]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sentences("data.files='~/corpus/*.txt'") == []


def test_a_checkpoint_to_start_from_must_exist_until_the_run_has_its_own(tmp_path):
    assert sentences(f"run.init_from={tmp_path}") == []
    own = tmp_path / "gpt-text/abcd0123/checkpoints/step-00000001"
    own.mkdir(parents=True)
    assert sentences("run.init_from=abcd0123", f"paths.outputs={tmp_path}") == []
    gone = [[f"{key}=gone/3", f"paths.outputs={tmp_path}", "run.id=abcd0123"] for key in STARTS]
    assert all(len(sentences(*words)) == 1 for words in gone)
    (own / "manifest.json").touch()
    assert [sentences(*words) for words in gone] == [[], []]


@pytest.mark.parametrize(
    ("words", "is_rejected"),
    [
        ("", True),
        ("job.value=last", False),
        ("hooks.checkpointing.best_metric=val/x hooks.checkpointing.best_mode=max", False),
    ],
)
def test_the_best_value_of_an_objective_needs_a_direction(words, is_rejected):
    config = composed(["model=mlp", "data=digits", "job.objective=val/x", *words.split()])
    if not is_rejected:
        validate(config)
        return
    with pytest.raises(ConfigError, match=r"job\.objective='val/x': the name does not"):
        validate(config)
