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
PAIR = ("compare", "aaaa0001", "aaaa0002")


def row(step, loss, **values):
    return {"step": step, "time": float(step), "attempt": 1, "train/loss": loss, **values}


MORE = {f"val/{name}": 2.0 for name in ("a", "b", "c")}


@pytest.fixture
def make_pair(make_run):
    """Makes two runs of other learning rates; the first has logged at steps 10 and 20."""

    def make(*second):
        best = {"metric": "val/loss", "value": 0.5, "step": 20}
        rows, model = (
            [row(10, 1.0, **dict.fromkeys(MORE, 1.0)), row(20, 0.9, **{"val/loss": 0.5})],
            {"model": "gpt"},
        )
        other = {**CONFIG, "optimizer": {"lr": 0.2}, "device": "cuda"}
        return [
            make_run("gpt", PAIR[1], config=CONFIG, choices=model, best=best, rows=rows),
            make_run(
                "gpt", PAIR[2], config=other, choices=model, state="failed", step=7, rows=second
            ),
        ]

    return make


def test_configuration_code_and_results(runs, make_pair, change):
    _, second = make_pair(row(10, 1.0), row(20, 0.9, **{"val/loss": 0.5000001}))
    versions = json.loads(second.record_path.read_text())["versions"]
    git = {"commit": "b" * 40, "dirty": True}
    change(second, versions=versions | {"torch": "1.0"}, git=git)
    compared = json.loads(runs(*PAIR, "--json")[1])
    assert compared["runs"] == ["gpt/aaaa0001", "gpt/aaaa0002"]
    assert compared["configuration"] == {"optimizer.lr": ["0.1", "0.2"]}
    assert compared["configuration that cannot change the numbers"] == {"device": ["cpu", "cuda"]}
    assert compared["code"]["torch"][1] == "1.0"
    assert compared["code"]["commit"][1] == "bbbbbbbbbbbb + changes"
    assert compared["results"]["state"] == ["completed", "failed"]
    assert compared["results"]["step"] == ["10/10", "7/10"]
    assert compared["results"]["best val/loss"] == ["0.5 (step 20)", None]
    (line,) = compared["metrics"]
    assert line.endswith(" at step 20: val/loss 0.5000001 instead of 0.5")
    output = runs(*PAIR)[1]
    assert "optimizer.lr   0.1           0.2" in output and "machine: the same" in output


def test_code_that_has_changed_while_a_run_trained(runs, make_pair, change):
    _, second = make_pair()
    (attempt,) = json.loads(second.record_path.read_text())["attempts"]
    later = {"start_step": 4, "end_step": 7, "trained": {"changes": ["a.py: was edited."]}}
    change(second, attempts=[attempt, attempt | later])
    changed = ["-", "after step 4: a.py: was edited."]
    assert json.loads(runs(*PAIR, "--json")[1])["code"] == {"changed": changed}
    shown = runs("show", PAIR[2])[1].splitlines()
    assert [line.split(maxsplit=1)[1] for line in shown if line.startswith("changed")] == changed[
        1:
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["A"], ["A"], None),
        (["A"], ["B"], ["A", "B"]),
        # On another machine for a while.
        (["A", "B", "B", "A"], ["A"], ["A; then B; then A", "A"]),
        (["A"], [None], ["A", "unknown"]),
    ],
)
def test_machines(runs, make_pair, change, first, second, expected):
    for folder, machines in zip(make_pair(), (first, second), strict=True):
        (attempt,) = json.loads(folder.record_path.read_text())["attempts"]
        attempts = [
            attempt | {"number": number, "machine": machine}
            for number, machine in enumerate(machines, 1)
        ]
        change(folder, attempts=attempts)
    compared = json.loads(runs(*PAIR, "--json")[1])
    assert compared["machine"] == ({} if expected is None else {"computed on": expected})


@pytest.mark.parametrize(
    ("second", "part"),
    [
        ([row(10, 1.0), row(20, 0.9)], "bitwise identical at all 2 steps"),
        ([row(10, 2.0, **MORE), row(20, 0.9)], "at step 10: train/loss 2.0 instead of 1.0"),
        ([row(10, "nan")], "at step 10: train/loss nan instead of 1.0"),
        ([row(5, 2.0), row(10, 1.5)], "no numbers that can be compared"),
        ([], "no numbers that can be compared"),
    ],
)
def test_where_the_numbers_part(runs, make_pair, second, part):
    """A training loss is a mean since the line before: other intervals cannot be compared."""
    make_pair(*second)
    assert part in runs(*PAIR)[1]


def test_compare_rejects_a_single_run(runs, make_pair):
    make_pair()
    for words in (["aaaa0001"], ["aaaa0001", "gpt/aaaa0001"]):
        code, output, error = runs("compare", *words)
        assert (code, output) == (2, "") and "two different runs" in error


IDENTITY = {"seed": 0, "optimizer": {"lr": 0.1}, "model": {"_target_": "m.Net", "sizes": [1, 2]}}
WHY = ("compare", "--why", "aaaa0001")


@pytest.mark.parametrize(
    ("other", "lines"),
    [
        (
            {"optimizer": {"lr": 0.2, "momentum": None}},
            ["optimizer.lr 0.1 0.2", "optimizer.momentum - null"],
        ),
        (
            {"model": {"_target_": "m.Net", "sizes": [1, 3]}, "seed": False},
            ["model.sizes [1,2] [1,3]", "seed 0 false"],
        ),
    ],
)
def test_the_keys_in_which_identities_differ_are_printed(make_run, runs, other, lines):
    make_run("gpt", "aaaa0001", identity=IDENTITY)
    make_run("gpt", "aaaa0002", identity=IDENTITY | other)
    code, output, _ = runs(*WHY, "aaaa0002")
    heading, *rows = output.splitlines()
    assert code == 0 and heading.split() == ["identity", "gpt/aaaa0001", "gpt/aaaa0002"]
    assert [" ".join(row.split()) for row in rows] == lines


def test_equal_identities_and_runs_without_one_are_named(make_run, runs):
    for number, identity in enumerate((IDENTITY, IDENTITY, None), 1):
        make_run("gpt", f"aaaa000{number}", identity=identity)
    assert runs(*WHY, "aaaa0002")[1] == "identity: the same\n"
    assert json.loads(runs(*WHY, "aaaa0002", "--json")[1])["identity"] == {}
    code, _, error = runs(*WHY, "aaaa0003")
    assert code == 2 and error.startswith("'gpt/aaaa0003': run.json has no identity")
