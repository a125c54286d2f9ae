"""The jobs of a sweep share compositions, and each equals the configuration of its overrides
alone."""

from typing import Any

import pytest
from hydra.types import RunMode

from launcher.cli.sweep import check_jobs
from launcher.config.compose import composer
from launcher.config.compose.composer import command, sweep_name
from launcher.config.run_config import replace_values

pytestmark = pytest.mark.slow

JOBS = [
    ["seed=1", "optimizer.lr=0.1"],
    ["seed=2", "precision.init_scale=8.0"],
    ["trainer.max_steps=70"],  # others refer to it
    ["scheduler.max_steps=7", "run.tag=again"],  # which itself refers to another
    ["model=mlp", "data=digits", "data.batch_size=32"],
    ["optimizer={lr: 0.2, betas: [0.8, 0.9]}"],
    ["hooks=[default,early_stopping]", "hooks.logging.interval=3"],
    ["~hooks.evaluation", "seed=3"],
    ["+tracker.more={_target_: launcher.hooks.jsonl.JsonlHook}", "seed=4"],
    ["run.id=mine", "paths.outputs=elsewhere", "seed=5"],
]


@pytest.fixture(scope="module")
def jobs():
    with command([], mode=RunMode.MULTIRUN) as words:
        return check_jobs(words, JOBS)


@pytest.mark.parametrize("index", range(len(JOBS)), ids=lambda index: " ".join(JOBS[index]))
def test_a_job_equals_its_overrides_alone(jobs, index):
    config = jobs[index].config
    with command(JOBS[index]) as words:
        alone = words.run()
    sweep = config.plain["run"]["sweep"]
    assert (config.plain, config.stored) == (
        replace_values(alone.plain, {"run.sweep": sweep}),
        replace_values(alone.stored, {"run.sweep": sweep}),
    )
    assert config.overrides == JOBS[index] and config.hydra is not None
    assert (config.hydra["job"]["num"], config.hydra["job"]["id"]) == (index, str(index))
    assert (config.hydra["mode"], alone.hydra and alone.hydra["mode"]) == ("MULTIRUN", "RUN")


def test_many_jobs_share_one_composition(monkeypatch):
    overrides = [
        ["model=mlp", "data=digits", f"seed={seed}", f"optimizer.lr={rate}"]
        for seed in range(10)
        for rate in (1e-3, 0.1)
    ]
    compositions: list[list[str]] = []
    compose_one = composer.hydra_compose

    def counted(name: str, words: list[str], **more: Any) -> Any:
        compositions.append(words)
        return compose_one(name, words, **more)

    monkeypatch.setattr(composer, "hydra_compose", counted)
    with command([], mode=RunMode.MULTIRUN) as words:
        jobs = check_jobs(words, overrides)
    assert compositions.count(["model=mlp", "data=digits"]) == 1 and len(compositions) == 2
    assert len({job.run for job in jobs}) == 20


def test_the_jobs_of_a_sweep_have_its_name(jobs):
    names = {job.plain["run"]["sweep"] for job in jobs}
    assert len(names) == 1 and names.pop().startswith("sweep-")


@pytest.mark.parametrize(("words", "is_same"), [
    (["lr=1,2", "seed=1,2", "tracker=[]", "dispatch.nproc=1"], True),
    (["seed=1,2,3", "lr=1,2"], False),
])  # fmt: skip
def test_a_sweep_is_named_by_its_overrides(words, is_same):
    assert (sweep_name(["seed=1,2", "lr=1,2"]) == sweep_name(words)) is is_same
