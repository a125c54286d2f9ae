"""`runs test`: which arms can be compared, and what is printed."""

import json
from typing import Any

import pytest

LOSSES = {
    "adamw": [0.31, 0.28, 0.35, 0.30],
    "sgd": [0.41, 0.36, 0.44, 0.42],
    "muon": [0.30, 0.29, 0.34, 0.31],
}
NAMES = iter(range(10**9))


@pytest.fixture
def add(make_run, change):
    """Adds a completed run. `scheduler.lr` follows the optimizer's learning rate, and `data.seed`
    the seed."""

    def add(
        optimizer: str, seed: int, loss: Any, width: Any = 8, steps: int = 20, dirty: bool = False
    ) -> None:
        lr = {"adamw": 0.001, "sgd": 0.1, "muon": 0.02}[optimizer]
        config = {
            "seed": seed,
            "data": {"seed": seed},
            "optimizer": {"_target_": f"torch.{optimizer}", "lr": lr},
            "scheduler": {"lr": lr},
            "model": {"width": width},
        }
        last = [{"step": n, "val/loss": 1.0} for n in range(10, steps, 10)]
        folder = make_run(
            "toy",
            f"{next(NAMES):08x}",
            config=config,
            choices={"optimizer": optimizer, "model": "mlp"},
            rows=[*last, {"step": steps, "val/loss": loss}],
        )
        change(folder, git={"commit": "a" * 40, "dirty": dirty})

    return add


@pytest.fixture
def arms(add):
    def make(*optimizers: str, seeds: int = 4) -> None:
        for optimizer in optimizers:
            for seed, loss in enumerate(LOSSES[optimizer][:seeds]):
                add(optimizer, seed, loss)

    return make


@pytest.mark.parametrize("seeds", [4, 3])
def test_numbers_equal_scipys(arms, runs, seeds):
    """Arms with the same seeds are paired, others are not."""
    from scipy import stats  # half a second, which each worker would pay at its start

    arms("adamw")
    arms("sgd", seeds=seeds)
    code, out, err = runs("test", "optimizer", "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert (data["metric"], data["step"]) == ("val/loss", 20)
    samples = [LOSSES["adamw"], LOSSES["sgd"][:seeds]]
    for values, losses in zip(data["arms"].values(), samples, strict=True):
        assert values == {str(seed): loss for seed, loss in enumerate(losses)}
    test = stats.ttest_rel(*samples) if seeds == 4 else stats.ttest_ind(*samples, equal_var=False)
    (found,) = data["comparisons"]
    assert found["test"] == ("paired t" if seeds == 4 else "Welch")
    gap = stats.tmean(samples[0]) - stats.tmean(samples[1])
    expected = [gap, *test.confidence_interval(0.95), test.pvalue]
    assert [found[k] for k in ("difference", "low", "high", "p")] == pytest.approx(expected)


def test_several_arms_are_adjusted(arms, runs):
    """By Holm's method."""
    from scipy import stats

    arms(*LOSSES)
    comparisons = json.loads(runs("test", "optimizer", "--json")[1])["comparisons"]
    pairs = [(each["first"], each["second"]) for each in comparisons]
    assert pairs == [("adamw", "sgd"), ("adamw", "muon"), ("sgd", "muon")]
    ps = [stats.ttest_rel(LOSSES[first], LOSSES[second]).pvalue for first, second in pairs]
    least, middle, most = sorted(ps)
    adjusted = {least: 3 * least, middle: max(3 * least, 2 * middle)}
    adjusted[most] = max(adjusted[middle], most)
    assert [each["p"] for each in comparisons] == pytest.approx([adjusted[p] for p in ps])
    assert "p (Holm)" in runs("test", "optimizer")[1]


def test_the_tables(arms, runs):
    arms("adamw", "muon")
    code, out, _ = runs("test", "optimizer")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert rows[1:4] == [["adamw", "4", "0.31", "0.02944"], ["muon", "4", "0.31", "0.0216"], []]
    assert rows[5][:3] == ["adamw", "-", "muon"] and rows[5][-2:] == ["paired", "t"]


def test_an_earlier_step_and_a_filter_are_compared(arms, runs):
    arms("adamw", "sgd", "muon")
    found = json.loads(runs("test", "optimizer", "optimizer!=muon", "--json")[1])["arms"]
    assert [*found] == ["adamw", "sgd"]
    assert runs("test", "optimizer", "--step=10")[2].startswith("adamw - sgd: is the same")


@pytest.mark.parametrize(
    ("more", "arguments", "message"),
    [
        ({"width": 16}, (), "optimizer=sgd: its runs differ in model.width"),
        ({"seed": 3}, (), "optimizer=sgd: needs runs of two seeds at least, and one run of each"),
        ({"dirty": True}, (), "'optimizer': the arms differ in commit as well"),
        ({}, ("--step=15",), "--step=15: val/loss has no finite value there in toy/"),
        ({}, ("--metric=val/los",), "'--metric=val/los': "),
        ({}, ("optimizer=sgd",), "'optimizer': a test compares runs with several values of it;"),
    ],
)
def test_arms_that_cannot_be_compared_are_rejected(arms, add, runs, more, arguments, message):
    arms("adamw", "sgd")
    add(**{"optimizer": "sgd", "loss": 0.4, "seed": 9} | more)
    code, out, err = runs("test", "optimizer", *arguments)
    assert (code, out) == (2, "") and err.startswith(message)


def test_keys_that_make_no_arms_are_rejected(arms, add, runs):
    arms("adamw", "sgd")
    code, _, err = runs("test", "optimizer.lr")
    assert code == 2 and err.startswith("'optimizer.lr': the arms differ in optimizer")
    add("muon", 0, 0.3)
    for key, message in {
        "seed": "'seed': the arms of a test differ in another key",
        "loss": "'loss': a test compares runs with several values of it; found none.",
        "optimzer": "'optimzer': no run has this key; did you mean optimizer",
        "model": "'model': a test compares runs with several values of it; found mlp.",
        "optimizer": "optimizer=muon: needs runs of two seeds",
    }.items():
        code, out, err = runs("test", key)
        assert (code, out) == (2, "") and message in err, (key, err)
