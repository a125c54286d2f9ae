"""The jobs of a sweep share compositions, and each equals the configuration of its overrides
alone."""

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from launcher.cli.composer import sweep_name
from launcher.cli.sweep import check_jobs
from launcher.cli.sweep_job import SweepJob
from launcher.config.compose import compose
from launcher.config.identity import fix_name
from launcher.config.plain import to_plain
from launcher.config.resolve import resolve
from launcher.config.schema import validate
from launcher.config.session import loader, session

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
def jobs() -> list[SweepJob]:
    with session(None):
        master = loader().load_configuration("config", [], RunMode.MULTIRUN)
        return check_jobs(loader(), master, JOBS)


@pytest.mark.parametrize("index", range(len(JOBS)), ids=lambda index: " ".join(JOBS[index]))
def test_a_job_equals_its_overrides_alone(jobs: list[SweepJob], index: int) -> None:
    job = jobs[index]
    config = compose(JOBS[index])
    fix_name(config)
    alone = validate(config)
    alone["run"]["sweep"] = job.plain["run"]["sweep"]
    assert job.plain == alone
    assert job.hydra["overrides"]["task"] == JOBS[index]
    assert (job.hydra["job"]["num"], job.hydra["job"]["id"]) == (index, str(index))


def test_many_jobs_share_one_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [
        ["model=mlp", "data=digits", f"seed={seed}", f"optimizer.lr={rate}"]
        for seed in range(10)
        for rate in (1e-3, 0.1)
    ]
    with session(None):
        master = loader().load_configuration("config", [], RunMode.MULTIRUN)
        compositions: list[list[str]] = []
        compose_one = type(loader()).load_sweep_config

        def counted(self: object, master: object, words: list[str]) -> object:
            compositions.append(words)
            return compose_one(self, master, words)

        monkeypatch.setattr(type(loader()), "load_sweep_config", counted)
        jobs = check_jobs(loader(), master, overrides)
    assert compositions == [["model=mlp", "data=digits"]]
    assert len({job.run for job in jobs}) == 20


def test_the_jobs_of_a_sweep_have_its_name(jobs: list[SweepJob]) -> None:
    names = {job.plain["run"]["sweep"] for job in jobs}
    assert len(names) == 1 and names.pop().startswith("sweep-")


@pytest.mark.parametrize(("words", "is_same"), [
    (["lr=1,2", "seed=1,2", "tracker=[]", "dispatch.nproc=1"], True),
    (["seed=1,2,3", "lr=1,2"], False),
])  # fmt: skip
def test_a_sweep_is_named_by_its_overrides(words: list[str], is_same: bool) -> None:
    masters = [
        OmegaConf.create({"hydra": {"overrides": {"task": each}}})
        for each in (["seed=1,2", "lr=1,2"], words)
    ]
    assert (sweep_name(masters[0]) == sweep_name(masters[1])) is is_same


def test_each_configuration_is_a_copy(jobs: list[SweepJob]) -> None:
    with session(None):
        for job in (jobs[0], jobs[-2]):
            config = job.config
            config.seed = 99
            assert resolve(job.config)[0] == job.plain
            assert to_plain(job.config.hydra) == job.hydra
