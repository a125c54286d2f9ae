import json

import pytest

DATA = {
    "_target_": "launcher.data.custom.CustomData",
    "_recursive_": False,
    "batch_size": 4,
    "shuffle": True,
}
INDEXED = DATA | {"dataset": {"_target_": "support.indexed.Indexed", "size": 10}}


@pytest.fixture
def make(make_run):
    def make(counts, data=INDEXED):
        """A run whose metrics.jsonl has these counts of samples, by step."""
        folder = make_run(
            "mlp",
            "abcd1234",
            config={"seed": 0, "data": data},
            state="preempted",
            step=max(counts, default=0),
        )
        lines = [{"step": step, "attempt": 1, "samples": count} for step, count in counts.items()]
        folder.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return make


def test_steps_between_two_lines(make, runs):
    make({1: 4, 3: 12, 5: 20})
    code, output, _ = runs("replay", "abcd1234", "--samples")
    assert code == 0 and "1        1 to 5  -               0 to 20" in output
    assert output.endswith("Epochs 1 to 2: 10 of 10 samples, each once.\n")
    code, output, _ = runs("replay", "abcd1234", "--samples", "--json")
    steps = [json.loads(line) for line in output.splitlines()]
    assert [(step["first"], step["last"], step["start"], step["end"]) for step in steps] == [
        (n, n, 4 * n - 4, 4 * n) for n in range(1, 6)
    ]
    assert sorted(index for step in steps for index in step["indices"]) == sorted(
        [*range(10), *range(10)]
    )
    code, output, _ = runs("replay", "abcd1234", "--step", 4)
    assert [int(word) for word in output.split()] == steps[3]["indices"]
    code, output, _ = runs("replay", "abcd1234", "--step", 4, "--json")
    assert json.loads(output) == steps[3]


def test_steps_that_took_more(make, runs):
    make({1: 4, 3: 16})
    code, output, _ = runs("replay", "abcd1234", "--samples")
    assert code == 0 and "which step used which sample is not known there" in output
    assert "Epoch 2: 6 of 10 samples, each once; it is not complete." in output


def test_a_count_that_falls_is_a_fault(make, runs):
    make({1: 4, 2: 8, 3: 4, 4: 8})
    code, output, _ = runs("replay", "abcd1234", "--samples")
    assert code == 1 and "does not follow from step to step: step 3 begins at position 8" in output


@pytest.mark.parametrize(
    ("counts", "data", "message"),
    [
        (
            {},
            INDEXED,
            (
                "mlp/abcd1234: its metrics.jsonl has no sample counts, so the samples of a step are"
                " not known."
            ),
        ),
        (
            {1: 4},
            DATA | {"dataset": {"_target_": "support.indexed.Stream", "size": 10}},
            "its training data are iterable (Stream)",
        ),
        (
            {1: 4},
            None,
            "mlp/abcd1234: run.json has no configuration, so its training data are not known.",
        ),
        (
            {1: 4},
            DATA | {"_target_": "gone.Source"},
            "data._target_='gone.Source': no module gone; is its folder on",
        ),
        (
            {1: 4},
            DATA | {"dataset": {"_target_": "support.gone.Data"}},
            "'support.gone.Data': no gone in support",
        ),
    ],
)
def test_samples_of_a_run_that_cannot_be_determined_are_an_error(make, runs, counts, data, message):
    make(counts, data)
    code, output, errors = runs("replay", "abcd1234", "--samples")
    assert (code, output) == (2, "") and message in errors


def test_data_that_have_changed(make, runs):
    folder = make({1: 4})
    checkpoint = folder.checkpoints / "step-00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    state = {"training_state": {"data_loader": {"samples": 4, "dataset": "12 samples"}}}
    (checkpoint / "state.json").write_text(json.dumps(state))
    code, _, errors = runs("replay", "abcd1234", "--samples")
    assert (
        code == 2
        and "its training data have changed from '12 samples' to '10 samples'; restore them."
        in errors
    )


def test_a_step_that_was_not_trained(make, runs):
    make({2: 8})
    code, _, errors = runs("replay", "abcd1234", "--step", 3)
    assert code == 2 and "--step=3: must be from 1 to 2." in errors
