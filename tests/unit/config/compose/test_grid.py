"""A sweep of one job composes what the same overrides compose without -m."""

import pytest
from hydra.types import RunMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.config.compose.composer import command
from launcher.config.run_config import RunConfig
from launcher.errors import ConfigError
from support.projects import shared_groups

__all__ = ["shared_groups"]

pytestmark = pytest.mark.usefixtures("shared_groups")

WORDS = (
    *("seed=1", "++seed=2", "seed=3", "run.tag=1.10", "++run.tag=1e3", "run.tag=a"),
    *("optimizer.lr=0.1", "++optimizer.lr=0.2", "optimizer={lr: 0.3}", "optimizer={lr: 0.4}"),
    *("~optimizer.weight_decay", "++optimizer.weight_decay=0.5", "optimizer=sgd"),
    *("optimizer=adamw", "model=mlp", "model=gpt", "~scheduler", "scheduler=linear"),
    *("+paths.own=1", "++paths.own=2", "paths.own=3", "~paths.own", "hooks=[default,ema]"),
    *("~hooks", "trainer.max_steps=5", "+trainer={max_steps: 6}", "dispatch.sbatch.a=1"),
)


def one_run(words: list[str]) -> RunConfig:
    with command(words, mode=RunMode.RUN) as typed:
        return typed.run()


def one_job(words: list[str]) -> RunConfig:
    with command(words, mode=RunMode.MULTIRUN) as typed:
        (overrides,) = typed.expand()
        return typed.job(overrides)


def outcome(words: list[str], compose) -> object:
    try:
        run = compose(words)
    except ConfigError:
        return "rejected"
    return {**run.plain, "run": {**run.plain["run"], "sweep": None}}


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.sampled_from(WORDS), max_size=7))
def test_a_sweep_of_one_job_is_the_run_of_its_words(words):
    words = ["data=digits", *words]

    assert outcome(words, one_job) == outcome(words, one_run)


@pytest.mark.parametrize(
    "words",
    [
        ["seed=1", "++seed=2", "seed=3"],
        ["++optimizer.lr=0.3", "optimizer.lr=0.1", "++optimizer.lr=0.2"],
        ["~optimizer.weight_decay", "++optimizer.weight_decay=0.5", "~optimizer.weight_decay"],
        ["optimizer={lr: 0.1}", "optimizer.lr=0.2", "optimizer={lr: 0.1}"],
        ["+trainer={max_steps: 5}", "trainer.max_steps=6", "+trainer={max_steps: 5}"],
    ],
)
def test_the_last_value_of_a_repeated_key_counts(words):
    words = ["model=mlp", "data=digits", *words]

    assert outcome(words, one_job) == outcome(words, one_run) != "rejected"


def test_a_tag_that_cannot_be_read_is_rejected():
    for tag in ("1,", "{a", "'1", "~"):
        assert outcome(["model=mlp", "data=digits", f"run.tag={tag}"], one_run) == "rejected"


TAGS = ("1.10", "1.1", "1_0.5", "10.5", "1e3", "1000", "007", "7", "0x1F", "2024.10", "nan", "inf")


@pytest.mark.parametrize("prefix", ["", "++"])
@pytest.mark.parametrize("form", ["{}", "'{}'"])
def test_a_tag_is_the_text_that_was_typed(prefix, form):
    ids = {}
    for tag in TAGS:
        run = one_run(["model=mlp", "data=digits", f"{prefix}run.tag={form.format(tag)}"])
        assert run.run.tag == tag
        ids[tag] = run.run.id

    assert len(set(ids.values())) == len(ids)


@pytest.mark.parametrize("form", ["{}", "choice({})"])
def test_the_tags_of_a_sweep_are_the_texts_that_were_typed(form):
    words = ["model=mlp", "data=digits", f"run.tag={form.format(','.join(TAGS))}"]
    with command(words, mode=RunMode.MULTIRUN) as typed:
        tags = [typed.job(job).run.tag for job in typed.expand()]

    assert tags == list(TAGS)
