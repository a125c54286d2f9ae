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


def test_arms_with_the_same_seeds_are_paired(make_run: Any, runs: Any) -> None:
    from scipy import stats

    add_arms(make_run, "adamw", "sgd")
    code, out, err = runs("test", "optimizer", "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert (data["metric"], data["step"]) == ("val/loss", 20)
    assert [arm["values"] for arm in data["arms"]] == [
        {str(seed): loss for seed, loss in enumerate(LOSSES[name])} for name in ("adamw", "sgd")
    ]
    (found,) = data["comparisons"]
    assert found["p"] == pytest.approx(stats.ttest_rel(LOSSES["adamw"], LOSSES["sgd"]).pvalue)
    assert (found["difference"]["test"], found["outlook"]) == ("paired t", "differ.")


def test_arms_with_other_seeds_are_not_paired(make_run: Any, runs: Any) -> None:
    from scipy import stats  # half a second, which each worker would pay at its start

    add_arms(make_run, "adamw")
    add_arms(make_run, "sgd", seeds=3)
    _, out, _ = runs("test", "optimizer", "--json")
    (found,) = json.loads(out)["comparisons"]
    welch = stats.ttest_ind(LOSSES["adamw"], LOSSES["sgd"][:3], equal_var=False)
    assert (found["p"], found["difference"]["test"]) == (pytest.approx(welch.pvalue), "Welch")


def test_several_arms_are_adjusted(make_run: Any, runs: Any) -> None:
    add_arms(make_run, *LOSSES)
    _, out, _ = runs("test", "optimizer", "--json")
    comparisons = json.loads(out)["comparisons"]
    assert [(each["first"], each["second"]) for each in comparisons] == [
        ("adamw", "sgd"),
        ("adamw", "muon"),
        ("sgd", "muon"),
    ]
    raw = [each["difference"]["p"] for each in comparisons]
    assert comparisons[raw.index(min(raw))]["p"] == pytest.approx(3 * min(raw))


def test_tables_and_what_more_seeds_would_show(make_run: Any, runs: Any) -> None:
    add_arms(make_run, "adamw", "muon")
    code, out, _ = runs("test", "optimizer")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == [
        "optimizer",
        "n",
        "val/loss",
        "at",
        "step",
        "20",
        "sd",
        "95",
        "%",
        "interval",
    ]
    assert lines[1].split() == ["adamw", "4", "0.31", "0.02944", "0.2632", "to", "0.3568"]
    assert lines[5].split()[:3] == ["adamw", "-", "muon"]
    assert lines[-1] == "adamw - muon: no difference was found."
    _, out, _ = runs("test", "optimizer", "--difference=0.01")
    assert "4 more seeds" not in out and "seeds would show a difference of 0.01" in out
    _, out, _ = runs("test", "optimizer", "--difference=1")
    assert "4 seeds show a difference of 1 with a probability of 100%." in out
    _, out, _ = runs("test", "optimizer", "--exact")
    assert "so few seeds cannot show a difference: no p-value is below 0.12." in out


def test_lists_are_arms_and_are_printed_as_they_are_typed(make_run: Any, runs: Any) -> None:
    for width in ([8], [8, 16]):
        for seed in range(3):
            add(make_run, "adamw", seed, LOSSES["adamw"][seed] * len(width) ** 2, width=width)
    _, out, _ = runs("test", "model.width")
    assert "[8] - [8,16]" in out and out.splitlines()[1].split()[0] == "[8]"


def test_latex_is_escaped(make_run: Any, runs: Any) -> None:
    add_arms(make_run, "adamw", "sgd")
    _, out, _ = runs("test", "optimizer", "--latex")
    assert (
        out.count(r"\begin{tabular}") == out.count(r"\toprule") == out.count(r"\end{tabular}") == 2
    )
    assert r"95 \% interval \\" in out and r"adamw & 4 & 0.31 & 0.02944" in out


def test_an_earlier_step_and_a_filter_are_compared(make_run: Any, runs: Any) -> None:
    add_arms(make_run, "adamw", "sgd", "muon")
    _, out, _ = runs("test", "optimizer", "val/loss>0", "optimizer=adamw", "--json")
    assert out == ""  # one arm
    code, _, err = runs("test", "optimizer", "--step=10")
    assert (code, err) == (
        2,
        "adamw: val/loss is the same for all seeds, so they tell nothing about its spread.\n",
    )


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (
            {"width": 16, "seed": 9},
            (),
            "optimizer=sgd: its runs differ in more than the seed: model.width; choose",
        ),
        ({"seed": 3}, (), "optimizer=sgd: several runs have the seed 3: toy/"),
        ({"steps": 30, "seed": 9}, (), "the runs end at different steps: toy/"),
        (
            {"dirty": True, "seed": 9},
            (),
            "'optimizer': the runs differ in their code: commit; choose with a filter",
        ),
        ({"loss": "nan", "seed": 9}, (), "'--metric=val/loss': is not finite at step 20 in toy/"),
        ({"seed": 9}, ("--step=15",), "--step=15: val/loss has no value there in toy/"),
        ({"seed": 9}, ("--metric=val/los",), "is not logged by toy/"),
        ({"seed": 9}, ("--metric=val/los",), "did you mean val/loss?"),
        ({"seed": 9}, ("--difference=0",), "--difference=0: should be a number above 0."),
        (
            {"seed": 9},
            ("optimizer=sgd",),
            "'optimizer': a test compares runs with several values of it, and all have",
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
        "seed": (
            "'seed': arms differ in a key of the configuration; e.g. optimizer or optimizer.lr."
        ),
        "loss": "'loss': arms differ in a key of the configuration",
        "optimzer": "'optimzer': no run has this key; did you mean optimizer",
        "model": "'model': a test compares runs with several values of it, and all have model=mlp.",
        "optimizer": "optimizer=muon: has one run; a test needs two seeds at least.",
        "optimizer.lr": (
            "'optimizer.lr': the arms differ in other keys as well: optimizer, optimizer._target_;"
            " choose"
        ),
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
        "adamw, sgd: differ by the same number for all seeds; nothing to test.\n",
    )
