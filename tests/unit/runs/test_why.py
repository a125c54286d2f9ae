"""Why two commands made two runs."""

import json

import pytest

IDENTITY = {"seed": 0, "optimizer": {"lr": 0.1}, "model": {"_target_": "m.Net", "sizes": [1, 2]}}
WHY = ("compare", "--why", "aaaa0001")


@pytest.mark.parametrize(
    ("other", "lines"),
    [
        ({"seed": 1}, ["seed 0 1"]),
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
    assert runs(*WHY, "aaaa0002")[1].startswith("Their identities are equal")
    assert json.loads(runs(*WHY, "aaaa0002", "--json")[1])["identity"] == {}
    code, _, error = runs(*WHY, "aaaa0003")
    assert code == 2 and error.startswith("'gpt/aaaa0003': run.json has no identity")
