"""`data=mixture`: runs that are stopped, forked weights, other ranks and workers; what is logged;
what is rejected."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.data.loader import ResumableLoader
from launcher.data.mixture import MixtureData
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from launcher.train.build import build_trainer
from support.batches import take
from support.collates import COLLATES
from support.composition import composed, run_of, validate
from support.runner import metrics_of

pytestmark = pytest.mark.slow

POINTS = "support.modules.Points"
VAL = {"_target_": POINTS, "size": 6}
SOURCES = {
    "web": {"_target_": POINTS, "size": 30, "weight": 3, "val_dataset": VAL},
    "code": {"_target_": POINTS, "size": 9, "weight": 1, "val_dataset": VAL | {"size": 3}},
}


def mixture(**options: Any) -> MixtureData:
    return MixtureData(**{"batch_size": 4, "sources": SOURCES, **options})


LINEAR = (
    "model=supervised", "model.loss=mse", "model.module._target_=torch.nn.Linear",
    "+model.module.in_features=1", "+model.module.out_features=1",
)  # fmt: skip


def train(
    folder: Path,
    max_steps: int,
    *overrides: str,
    sources: Any = SOURCES,
    model: tuple[str, ...] = LINEAR,
) -> list[dict[str, Any]]:
    written = json.dumps(sources).replace('"', "")
    given = [
        *model, "data=mixture", f"data.sources={written}",
        "data.batch_size=4",
        "scheduler=constant", "device=cpu", f"paths.outputs={folder}",
        f"trainer.max_steps={max_steps}",
        "hooks.logging.interval=1", "hooks.evaluation.interval=4", *overrides,
    ]  # fmt: skip
    build_trainer(run_of(given), RunFolder(folder)).train()
    return metrics_of(folder)


STAGED = "trainer.micro_batch_size=2", "data.stages=[{at: 18, weights: {code: 9}}]"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"), 9, *STAGED)


def test_a_run_that_was_stopped_equals_one_that_was_not(whole, tmp_path):
    train(tmp_path, 9, *STAGED, "trainer.pause_at=5")
    assert train(tmp_path, 9, *STAGED) == whole
    last = whole[-1]
    assert {"val/web/loss", "val/code/loss", "val/loss"} <= last.keys()
    mean = (6 * last["val/web/loss"] + 3 * last["val/code/loss"]) / 9
    assert last["val/loss"] == pytest.approx(mean)


SEED = 0


def test_losses_of_the_sources_make_up_the_loss_of_the_step(whole):
    """The module has no dropout, so evaluation mode changes nothing."""
    stages = [{"at": 18, "weights": {"code": 9}}]
    order = mixture(stages=stages).train_dataset().order(SEED, True)
    for line in whole[1:]:
        counts = order.counts(line["samples"]) - order.counts(line["samples"] - 4)
        losses = [line.get(f"train/loss/{name}", 0.0) for name in order.names]
        assert line["train/loss"] == pytest.approx(float(np.dot(counts, losses)) / 4, rel=1e-5)
        assert [f"train/loss/{name}" in line for name in order.names] == [
            bool(count) for count in counts
        ]


@pytest.mark.parametrize("kind", COLLATES)
def test_the_samples_of_a_source_make_a_batch_of_any_form(kind, tmp_path):
    """A batch here has as many values in time as it has samples."""
    data = {"_target_": "support.collates.Sequences", "size": 7, "has_equal_lengths": True}
    sources = {"web": data, "code": data | {"size": 9}}
    collate = f"{{_target_: support.collates.{kind}, _partial_: true}}"
    lines = train(
        tmp_path, 4, f"data.collate_fn={collate}", "data.batch_size=6",
        "trainer.micro_batch_size=3", "optimizer.lr=1e-4", sources=sources,
        model=("~model", "+model={_target_: support.collates.MeanModel}"),
    )  # fmt: skip
    order = mixture(sources=sources).train_dataset().order(SEED, True)
    for line in lines:
        counts = order.counts(line["samples"]) - order.counts(line["samples"] - 6)
        losses = [line[f"train/loss/{name}"] for name in order.names]
        assert line["train/loss"] == pytest.approx(float(np.dot(counts, losses)) / 6, rel=1e-5)


def test_stop_ends_the_training(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    lines = train(tmp_path, 50, "data.exhausted=stop")
    order = mixture(exhausted="stop").train_dataset().order(SEED, True)
    assert lines[-1]["samples"] == (order.end() or 0) // 4 * 4 < 200
    assert "has no samples for another step (data.exhausted=stop)" in caplog.text


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (2, 0), (2, 1)])
def test_ranks_and_workers_see_the_samples_of_one_process(world_size, workers):
    dataset = mixture().train_dataset()
    expected = [dataset[int(index)][0].item() for index in dataset.order(3, True).indices(8, 16)]
    options: Any = {"seed": 3, "micro_batch_size": 8 // world_size, "samples": 8}
    options |= {"world_size": world_size, "num_workers": workers}
    parts = [take(ResumableLoader(dataset, rank=rank, **options), 2) for rank in range(world_size)]
    seen = [x.item() for step in range(2) for batches in parts for x in batches[step][0]]
    assert seen == expected


def test_a_fork_resumes_with_the_weights_that_it_has_had():
    before = ResumableLoader(mixture().train_dataset(), seed=3, micro_batch_size=4, samples=20)
    other = mixture(stages=[{"at": 0, "weights": {"web": 0}}]).train_dataset()
    fork = ResumableLoader(other, seed=3, micro_batch_size=4)
    fork.load_state_dict(before.state_dict())
    fork.samples = 28
    resumed = ResumableLoader(other, seed=3, micro_batch_size=4)
    resumed.load_state_dict(json.loads(json.dumps(fork.state_dict())))
    assert (resumed.order.indices(0, 60) == fork.order.indices(0, 60)).all()
    assert (resumed.order.counts(20) == before.order.counts(20)).all()
    assert resumed.order.counts(60)[0] == before.order.counts(20)[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": {}}, r"data.sources=\{\}: names no source"),
        ({"sources": {"web": SOURCES["web"] | {"weight": 0}}}, "data.sources: all weights are 0"),
        (
            {"sources": {"web": {"_target_": "launcher.data.digits.DigitsData", "skip": [[1, 2]]}}},
            r"data.sources.web.skip=\[\[1, 2\]\]: ",
        ),
        ({"stages": [{"at": 3, "weights": {"x": 1}}]}, r"data.stages\[0\].weights.x: "),
        ({"stages": [{"at": -1, "weights": {}}]}, r"data.stages\[0\].at=-1: "),
        ({"stages": [{"at": 3}]}, r"data.stages\[0\]: "),
        ({"stages": [{"at": 3, "weights": {"web": "x"}}]}, r"data.stages\[0\].weights.web=x: "),
        ({"stages": [{"at": 3, "weights": {}}] * 2}, "data.stages: at=3 follows at=3"),
    ],
)
def test_sources_and_stages_that_make_no_sense_are_rejected(options, message):
    with pytest.raises(ConfigError, match=message):
        mixture(**options).check()


@pytest.mark.parametrize(
    "fault", ["data.sources.web.weight=-1", "data.sources.web.weight=much", "+data.sources.web.x=1"]
)
def test_a_source_is_checked_against_its_constructor(fault):
    sources = json.dumps(SOURCES).replace('"', "")
    config = composed(
        ["data=mixture", f"data.sources={sources}", "data.vocab_size=9", "data.seq_len=4", fault]
    )
    with pytest.raises(ConfigError, match=r"^data\.sources\.web\."):
        validate(config)
