"""Filters and sorting: what a key means for a run."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import ConfigError
from launcher.runs.filters import holds, rank, select, sort, value_of
from launcher.runs.find_runs import find_runs


@pytest.fixture
def four(make_run, outputs):
    """Runs a to d with lr 1e-4 ... 1e-1; c has no validation loss, d's is NaN."""
    losses = {"a": 2.5, "b": 1.5, "c": None, "d": math.nan}
    for power, (id, loss) in enumerate(losses.items(), -4):
        folder = make_run(
            "gpt",
            id,
            config={"optimizer": {"lr": 10.0**power}, "model": {"bias": power % 2 == 0}},
            choices={"model": "gpt"},
            step=power + 10,
            best={"metric": "val/loss", "value": loss, "step": 5} if loss and loss > 0 else None,
            state="failed",
            rows=[{"step": 5, "val/loss": 9.0}, {"step": 10, "val/loss": loss}] if loss else [],
        )
        with open(folder.metrics_path, "a") as file:
            file.write('{"step": 11, "val/l')
    return find_runs(outputs)


@pytest.mark.parametrize(
    ("word", "ids"),
    [("gpt/b", "b"), ("{outputs}/gpt/../gpt/c/", "c"), ("gpt/", None), ("{outputs}/gpt/e", None)],
)
def test_a_run_is_selected_by_its_folder(four, outputs, word, ids):
    words = [word.format(outputs=outputs)]
    if ids is None:
        with pytest.raises(ConfigError, match="as its folder"):
            select(four, words)
    else:
        assert [run.id for run in select(four, words)] == [ids]


def test_the_folder_of_a_run_elsewhere_leads_to_its_folder_of_runs(four, tmp_path):
    (folder := tmp_path / "others" / "gpt" / "e").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"which --outputs={tmp_path}/others names"):
        select(four, [str(folder)])


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("optimizer.lr>1e-3", "cd"),
        ("optimizer.lr<0.001", "a"),
        ("val/loss<2", "b"),
        ("step>7", "cd"),
        ("val/loss!=1.5", "acd"),
        ("model=gpt state!=failed", ""),
        ("model.bias=True", "ac"),
        ("attempts=1 id=a", "a"),
        ("b", "b"),
    ],
)
def test_conditions(four, words, ids):
    assert "".join(run.id for run in select(four, words.split())) == ids


@pytest.mark.parametrize(
    ("word", "ids"),
    [
        ("hooks=ema", "b"),
        ("hooks!=ema", "a"),
        ("hooks=[logging,ema]", "b"),
        ("hooks=[ema]", ""),
        ("hooks=off", ""),
        ("tracker=wandb", "b"),
        ("tracker=none", "a"),
        ("tracker=[]", "a"),
        ("tracker!=none", "b"),
        ("label=[x,y]", "b"),
        ("label=y", "b"),
    ],
)
def test_parts_of_groups_with_several_are_filtered_by_name(make_run, outputs, word, ids):
    part = {"_target_": "Part"}
    make_run("gpt", "a", config={"hooks": {"logging": part, "off": None}})
    run = {"hooks": {"ema": part, "logging": part}, "tracker": {"wandb": part}}
    make_run("gpt", "b", config=run | {"run": {"labels": ["x", "y"]}})
    assert "".join(run.id for run in select(find_runs(outputs), [word])) == ids


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("val/los<2", "did you mean val/loss?"),
        ("optimizer.lr<abc", "e.g. optimizer.lr<0.1."),
        ("state=faild", "did you mean state=failed?"),
        ("state!=x", "damaged or unsupported."),
    ],
)
def test_a_condition_that_cannot_hold_is_rejected(four, word, hint):
    with pytest.raises(ConfigError) as error:
        select(four, [word])
    (message,) = error.value.messages
    assert message.startswith(f"'{word.partition('<')[0]}") and message.endswith(hint)


@pytest.mark.parametrize(
    ("key", "reverse", "ids"),
    [
        ("val/loss", False, "bacd"),
        ("val/loss", True, "abcd"),
        ("optimizer.lr", True, "dcba"),
        ("best", False, "bacd"),
    ],
)
def test_runs_without_a_value_come_last(four, key, reverse, ids):
    assert "".join(run.id for run in sort(four, key, reverse)) == ids


def test_an_unknown_sort_key_is_rejected(four):
    with pytest.raises(ConfigError, match=r"'--sort=val/los': .* mean val/loss\?"):
        sort(four, "val/los")


def test_the_newest_complete_line_counts(four):
    assert value_of(four[0], "val/loss") == 2.5 and value_of(four[2], "val/loss") is None


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_conditions_agree_with_each_other(left, right):
    assert holds(left, "<", str(right)) == (not holds(left, ">=", str(right)))
    assert holds(left, "=", str(right)) == (not holds(left, "!=", str(right)))
    assert (rank(left) < rank(right)) == holds(left, "<", str(right))
