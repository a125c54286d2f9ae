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


def add(
    make_run: Any,
    optimizer: str,
    seed: int,
    loss: Any,
    *,
    width: Any = 8,
    steps: int = 20,
    dirty: bool = False,
) -> None:
    """A completed run. `scheduler.lr` follows the optimizer's learning rate, and `data.seed` the
    seed."""
    lr = {"adamw": 0.001, "sgd": 0.1, "muon": 0.02}[optimizer]
    config = {
        "seed": seed,
        "data": {"seed": seed},
        "optimizer": {"_target_": f"torch.{optimizer}", "lr": lr},
        "scheduler": {"lr": lr},
        "model": {"width": width},
    }
    id = f"{next(NAMES):08x}"
    folder = make_run("toy", id, config=config, choices={"optimizer": optimizer, "model": "mlp"})
    rows = [
        {"step": step, "val/loss": loss if step == steps else 1.0}
        for step in range(10, steps + 1, 10)
    ]
    folder.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = json.loads(folder.record_path.read_text())
    record["git"] = {"commit": "a" * 40, "dirty": dirty}
    folder.record_path.write_text(json.dumps(record))


def add_arms(make_run: Any, *optimizers: str, seeds: int = 4) -> None:
    for optimizer in optimizers:
        for seed, loss in enumerate(LOSSES[optimizer][:seeds]):
            add(make_run, optimizer, seed, loss)


@pytest.mark.parametrize("seeds", [4, 3])
def test_numbers_equal_scipys(make_run: Any, runs: Any, seeds: int) -> None:
    """Arms with the same seeds are paired, others are not."""
    from scipy import stats  # half a second, which each worker would pay at its start

    add_arms(make_run, "adamw")
    add_arms(make_run, "sgd", seeds=seeds)
    code, out, err = runs("test", "optimizer", "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert (data["metric"], data["step"]) == ("val/loss", 20)
    samples = [LOSSES["adamw"], LOSSES["sgd"][:seeds]]
    for arm, losses in zip(data["arms"], samples, strict=True):
        assert arm["values"] == {str(seed): loss for seed, loss in enumerate(losses)}
        low, high = stats.t.interval(
            0.95, len(losses) - 1, loc=stats.tmean(losses), scale=stats.sem(losses)
        )
        expected = [len(losses), stats.tmean(losses), stats.tstd(losses), low, high]
        assert [arm[name] for name in ("n", "mean", "sd", "low", "high")] == pytest.approx(expected)
    test = stats.ttest_rel(*samples) if seeds == 4 else stats.ttest_ind(*samples, equal_var=False)
    (found,) = data["comparisons"]
    assert found["test"] == ("paired t" if seeds == 4 else "Welch")
    assert [found[name] for name in ("difference", "low", "high", "p")] == pytest.approx(
        [
            stats.tmean(samples[0]) - stats.tmean(samples[1]),
            *test.confidence_interval(0.95),
            test.pvalue,
        ]
    )


def test_several_arms_are_adjusted(make_run: Any, runs: Any) -> None:
    """By Holm's method."""
    from scipy import stats

    add_arms(make_run, *LOSSES)
    _, out, _ = runs("test", "optimizer", "--json")
    comparisons = json.loads(out)["comparisons"]
    pairs = [(each["first"], each["second"]) for each in comparisons]
    assert pairs == [("adamw", "sgd"), ("adamw", "muon"), ("sgd", "muon")]
    ps = [stats.ttest_rel(LOSSES[first], LOSSES[second]).pvalue for first, second in pairs]
    least, middle, most = sorted(ps)
    adjusted = {least: 3 * least, middle: max(3 * least, 2 * middle)}
    adjusted[most] = max(adjusted[middle], most)
    assert [each["p"] for each in comparisons] == pytest.approx([adjusted[p] for p in ps])
    assert "p (Holm)" in runs("test", "optimizer")[1]


def test_the_tables(make_run: Any, runs: Any) -> None:
    add_arms(make_run, "adamw", "muon")
    code, out, _ = runs("test", "optimizer")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["optimizer", "n", "val/loss", "at", "step", "20", "sd", "95", "%", "interval"],
        ["adamw", "4", "0.31", "0.02944", "0.2632", "to", "0.3568"],
        ["muon", "4", "0.31", "0.0216", "0.2756", "to", "0.3444"],
        [],
        ["optimizer", "difference", "95", "%", "interval", "p", "test"],
        [*["adamw", "-", "muon"], *out.splitlines()[5].split()[3:-2], "paired", "t"],
    ]


def test_lists_are_arms_and_are_printed_as_they_are_typed(make_run: Any, runs: Any) -> None:
    for width in ([8], [8, 16]):
        for seed in range(3):
            add(make_run, "adamw", seed, LOSSES["adamw"][seed] * len(width) ** 2, width=width)
    _, out, _ = runs("test", "model.width")
    assert "[8] - [8,16]" in out and out.splitlines()[1].split()[0] == "[8]"


def test_an_earlier_step_and_a_filter_are_compared(make_run: Any, runs: Any) -> None:
    add_arms(make_run, "adamw", "sgd", "muon")
    arms = json.loads(runs("test", "optimizer", "optimizer!=muon", "--json")[1])["arms"]
    assert [arm["arm"] for arm in arms] == ["adamw", "sgd"]
    message = "adamw - sgd: is the same for all seeds; nothing to test.\n"
    assert runs("test", "optimizer", "--step=10") == (2, "", message)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (
            {"width": 16, "seed": 9},
            (),
            "optimizer=sgd: its runs differ in more than the seed: model.width; choose",
        ),
        ({"seed": 3}, (), "optimizer=sgd: several runs have the same seed: toy/"),
        ({"steps": 30, "seed": 9}, (), "--step=30: val/loss has no finite value there in toy/"),
        (
            {"dirty": True, "seed": 9},
            (),
            "'optimizer': the runs differ in their code: commit; choose with a filter",
        ),
        ({"loss": "nan", "seed": 9}, (), "--step=20: val/loss has no finite value there in toy/"),
        ({"seed": 9}, ("--step=15",), "--step=15: val/loss has no finite value there in toy/"),
        ({"seed": 9}, ("--metric=val/los",), "is not logged by toy/"),
        ({"seed": 9}, ("--metric=val/los",), "did you mean val/loss?"),
        (
            {"seed": 9},
            ("optimizer=sgd",),
            "'optimizer': a test compares runs with several values of it; found sgd.",
        ),
    ],
)
def test_arms_that_cannot_be_compared_are_rejected(
    make_run: Any, runs: Any, change: dict[str, Any], arguments: Any, message: str
) -> None:
    add_arms(make_run, "adamw", "sgd")
    add(make_run, **{"optimizer": "sgd", "loss": 0.4} | change)
    code, out, err = runs("test", "optimizer", *arguments)
    assert (code, out) == (2, "")
    assert message in err and "Traceback" not in err


def test_keys_that_make_no_arms_are_rejected(make_run: Any, runs: Any) -> None:
    add_arms(make_run, "adamw", "sgd")
    add(make_run, "muon", 0, 0.3)
    for key, message in {
        "seed": "'seed': the arms of a test differ in another key; e.g. optimizer.lr.",
        "loss": "'loss': a test compares runs with several values of it; found none.",
        "optimzer": "'optimzer': no run has this key; did you mean optimizer",
        "model": "'model': a test compares runs with several values of it; found mlp.",
        "optimizer": "optimizer=muon: has one run, and a test needs two seeds at least; choose",
        "optimizer.lr": "optimizer.lr=0.02: has one run",
    }.items():
        code, out, err = runs("test", key)
        assert (code, out) == (2, "") and message in err, (key, err)


def test_a_difference_without_spread_is_rejected(make_run: Any, runs: Any) -> None:
    for optimizer, offset in (("adamw", 0.0), ("sgd", 0.1)):
        for seed in range(3):
            add(make_run, optimizer, seed, 0.1 * seed + offset)
    code, _, err = runs("test", "optimizer")
    assert (code, err) == (
        2,
        "adamw - sgd: is the same for all seeds; nothing to test.\n",
    )


def test_arms_that_differ_in_other_keys_are_rejected(make_run: Any, runs: Any) -> None:
    add_arms(make_run, "adamw", "sgd")
    _, _, err = runs("test", "optimizer.lr")
    assert err.startswith("'optimizer.lr': the arms differ in other keys as well: optimizer")
