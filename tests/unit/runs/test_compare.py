"""Differences between runs."""

import json

import pytest

CONFIG = {
    "optimizer": {"lr": 0.1},
    "model": {"dim": 8},
    "hooks": {"logging": {"interval": 10}},
    "run": {"id": "x", "identity_exclude": ["hooks.logging", "device"]},
    "device": "cpu",
}


def lines(folder, rows):
    folder.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(step, **values):
    return {
        "step": step,
        "time": float(step),
        "attempt": 1,
        **{key.replace("_", "/"): v for key, v in values.items()},
    }


@pytest.fixture
def pair(make_run):
    """Two runs of other learning rates, which part at step 20."""
    best = {"metric": "val/loss", "value": 0.5, "step": 20}
    first = make_run("gpt", "aaaa0001", config=CONFIG, choices={"model": "gpt"}, best=best)
    other = {**CONFIG, "optimizer": {"lr": 0.2}, "device": "cuda"}
    second = make_run(
        "gpt", "aaaa0002", config=other, choices={"model": "gpt"}, state="failed", step=7
    )
    lines(first, [row(10, train_loss=1.0), row(20, train_loss=0.9, val_loss=0.5)])
    lines(second, [row(10, train_loss=1.0), row(20, train_loss=0.9, val_loss=0.5000001)])
    return first, second


def test_configuration_code_and_results(runs, pair):
    path = pair[1].record_path
    record = json.loads(path.read_text())
    record["versions"]["torch"], record["git"] = "1.0", {"commit": "b" * 40, "dirty": True}
    path.write_text(json.dumps(record))
    code, output, _ = runs("compare", "aaaa0001", "aaaa0002", "--json")
    compared = json.loads(output)
    assert code == 0 and compared["runs"] == ["gpt/aaaa0001", "gpt/aaaa0002"]
    assert compared["configuration"] == {"optimizer.lr": ["0.1", "0.2"]}
    assert compared["configuration that cannot change the numbers"] == {"device": ["cpu", "cuda"]}
    assert (
        compared["code"]["torch"][1] == "1.0"
        and compared["code"]["commit"][1] == "bbbbbbbbbbbb + changes"
    )
    assert compared["results"]["state"] == ["completed", "failed"] and compared["results"][
        "step"
    ] == ["10/10", "7/10"]
    assert compared["results"]["best val/loss"] == ["0.5 (step 20)", None]
    assert compared["metrics"] == [
        "gpt/aaaa0002 against gpt/aaaa0001: the numbers first differ at step 20: val/loss 0.5000001"
        " instead of 0.5"
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["A"], ["A"], None),
        (["A", "A"], ["A"], None),
        (["A"], ["B"], ["A", "B"]),
        # On another machine for a while.
        (["A", "B", "B", "A"], ["A"], ["A; then B; then A", "A"]),
        (["A"], [None], ["A", "unknown"]),
    ],
)
def test_machines(runs, pair, first, second, expected):
    for folder, machines in zip(pair, (first, second), strict=True):
        record = json.loads(folder.record_path.read_text())
        (attempt,) = record["attempts"]
        record["attempts"] = [
            attempt | {"number": number, "machine": machine}
            for number, machine in enumerate(machines, 1)
        ]
        folder.record_path.write_text(json.dumps(record))
    compared = json.loads(runs("compare", "aaaa0001", "aaaa0002", "--json")[1])
    assert compared["machine"] == ({} if expected is None else {"computed on": expected})


def test_as_a_person_reads_it(runs, pair):
    code, output, _ = runs("compare", "aaaa0001", "aaaa0002")
    assert code == 0 and "optimizer.lr   0.1           0.2" in output and "code: the same" in output


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (
            [row(10, train_loss=1.0), row(20, train_loss=0.9)],
            "are bitwise identical at all 2 steps that both logged",
        ),
        (
            [row(10, train_loss="nan")],
            "the numbers first differ at step 10: train/loss nan instead of 1.0",
        ),
        (
            [row(5, train_loss=2.0), row(10, train_loss=1.5)],
            "they have logged no numbers that can be compared",
        ),
        ([], "they have logged no numbers that can be compared"),
    ],
)
def test_where_the_numbers_part(runs, pair, second, sentence):
    """A training loss is a mean since the line before: other intervals cannot be compared."""
    lines(pair[1], second)
    assert sentence in runs("compare", "aaaa0001", "aaaa0002")[1]


def test_compare_rejects_a_single_run(runs, pair):
    for words in (["aaaa0001"], ["aaaa0001", "gpt/aaaa0001"]):
        code, output, error = runs("compare", *words)
        assert (code, output) == (
            2,
            "",
        ) and error == "give at least two different runs: compare RUN RUN.\n"
