"""`runs replay` on what it cannot replay; tests/end_to_end/test_replay.py trains."""

import json

import pytest


def checkpoints(make_run, *steps):
    folder = make_run("mlp", "abcd1234")
    for step in steps:
        (folder.checkpoints / f"step-{step:08d}").mkdir(parents=True)
        (folder.checkpoints / f"step-{step:08d}" / "manifest.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("steps", "words", "message"),
    [
        ((), (), "mlp/abcd1234: has no checkpoint in "),
        (
            (5, 9),
            ("--from", "4"),
            "--from=4: mlp/abcd1234 has no such checkpoint; it has 0, 5.",
        ),
        (
            (5, 9),
            ("--to", "4"),
            "--to=4: mlp/abcd1234 has no such checkpoint; it has 5, 9.",
        ),
        (
            (5, 9),
            ("--from", "9"),
            "--from=9: mlp/abcd1234 has no such checkpoint; it has 0, 5.",
        ),
        ((5, 9), ("--from", "5", "--to", "5"), "--from=5: must be before --to=5."),
        ((5,), ("--segments", "0"), "--segments=0: must be at least 1."),
        ((5,), (), "mlp/abcd1234: step-00000005: manifest.json"),
        ((5,), ("--segments", "x"), "argument --segments: invalid int value"),
    ],
)
def test_replay_rejects_what_it_cannot_train(make_run, runs, steps, words, message):
    checkpoints(make_run, *steps)
    code, output, errors = runs("replay", "abcd1234", *words)
    assert (code, output) == (2, "") and message in errors


def test_runs_of_a_filter_that_cannot_be_replayed_do_not_keep_the_others_from_it(make_run, runs):
    checkpoints(make_run, 5)
    make_run("mlp", "bbbb1234")
    make_run("gpt", "ffff1234", state="failed")
    code, output, errors = runs("replay", "state=completed")
    heading, *rows = output.splitlines()
    assert (code, errors, heading.split()) == (1, "", ["name", "id", "equal", "result"])
    ids = ["mlp/abcd1234", "mlp/bbbb1234"]
    assert [row.split()[:5] for row in rows] == [
        [*id.split("/"), "0/0", "not", "replayed:"] for id in ids
    ]
    code, output, _ = runs("replay", "step=10", "--json")
    found = [json.loads(line) for line in output.splitlines()]
    assert code == 1 and [row["run"] for row in found] == [*ids, "gpt/ffff1234"]
    assert not any(row["equal"] for row in found) and "has no checkpoint in" in found[1]["error"]
