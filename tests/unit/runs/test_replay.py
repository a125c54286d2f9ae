"""`runs replay` on what it cannot replay; tests/end_to_end/test_replay.py trains."""

import pytest


@pytest.fixture
def saved(make_run):
    """Makes a run with empty checkpoints of these steps."""

    def make(*steps):
        folder = make_run("mlp", "abcd1234")
        for step in steps:
            path = folder.checkpoints / f"step-{step:08d}"
            path.mkdir(parents=True)
            (path / "manifest.json").write_text("{}")

    return make


@pytest.mark.parametrize(
    ("steps", "words", "message"),
    [
        ((), "", "mlp/abcd1234: has no checkpoint in "),
        ((5, 9), "--from 4", "--from=4: mlp/abcd1234 has no such checkpoint; it has 0, 5."),
        ((5, 9), "--to 4", "--to=4: mlp/abcd1234 has no such checkpoint; it has 5, 9."),
        ((5, 9), "--from 9", "--from=9: mlp/abcd1234 has no such checkpoint; it has 0, 5."),
        ((5, 9), "--from 5 --to 5", "--from=5: "),
        ((5,), "--segments 0", "--segments=0: "),
        ((5,), "", "mlp/abcd1234: step-00000005: manifest.json"),
        ((5,), "--segments x", "argument --segments: "),
    ],
)
def test_replay_rejects_what_it_cannot_train(saved, runs, steps, words, message):
    saved(*steps)
    code, output, errors = runs("replay", "abcd1234", *words.split())
    assert (code, output) == (2, "") and errors.splitlines()[-1].startswith(message)


def test_runs_of_a_filter_that_cannot_be_replayed_do_not_keep_the_others_from_it(
    saved, make_run, runs
):
    saved(5)
    make_run("mlp", "bbbb1234")
    make_run("gpt", "ffff1234", state="failed")
    code, output, _ = runs("replay", "state=completed")
    ids = ["mlp/abcd1234", "mlp/bbbb1234"]
    starts = [line.partition(id)[0] for line, id in zip(output.splitlines(), ids, strict=True)]
    assert (code, starts) == (1, ["Not replayed: "] * 2)
