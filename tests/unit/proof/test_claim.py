"""Claims: what a file must have, the paths that it publishes, ranks, and the choice of segments;
tests/end_to_end/test_claim.py makes and checks some."""

import json
import re
import shutil
from collections import Counter
from itertools import pairwise

import pytest

from launcher.errors import ConfigError
from launcher.process.device import cpu_kernels
from launcher.proof.check_claim import ranks_for
from launcher.proof.claim import (
    check_paths,
    commit_of,
    fit,
    sweeps_of,
    unstored_of,
    why_not,
    why_not_alike,
    why_not_code,
    why_not_data,
)
from launcher.proof.claim_file import PREDICATE, STATEMENT, Claim, data_of, describe_sweep
from launcher.proof.claim_levels import other_machine
from launcher.proof.segment import choose
from launcher.rundir.provenance import machine_state
from launcher.rundir.provenance import versions as current_versions
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.runs.stored_run import StoredRun
from launcher.runs.trials import Goal, Trial
from support.run_maker import run_maker


def statement(**changes):
    predicate = {
        "step": 9,
        "identity": {"data": {"path": "data/a.csv"}},
        "beyond_identity": {},
        "machine": {"threads": 1, "device": "cpu"},
        "versions": {},
        "code": {"commit": None},
        "data": {"files": {}},
        "chain": {"root": "", "length": 1, "lines": []},
        "device_hours": 0.5,
        "ranks": 4,
        "lanes": None,
        "metric": None,
    }
    subject = [{"name": "a/b", "digest": {"sha256": "0" * 64}}]
    return {
        "_type": STATEMENT,
        "subject": subject,
        "predicateType": PREDICATE,
        "predicate": predicate | changes,
    }


def read(tmp_path, content):
    file = tmp_path / "claim.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return Claim.read(file)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "[" * 100_000,
        "{}",
        {**statement(), "subject": []},
        {**statement(), "_type": "other"},
        {**statement(), "predicateType": "other"},
        {**statement(), "predicate": []},
        statement(step="many"),
        statement(step=0),
        statement(ranks=0),
        statement(identity=[]),
        statement(chain={}),
        statement(chain={"root": "", "length": 1, "lines": [1]}),
        statement(code={"commit": 1}),
        statement(data={"files": []}),
        statement(machine={"threads": "many", "device": "cpu"}),
        statement(machine={}),
        statement(metric={"name": "val/loss", "value": "0x1p0", "split": "../job"}),
        statement(metric={"name": "val/loss", "value": "half"}),
        statement(sweeps={"name": "lr", "runs": 3}),
        statement(sweeps=["lr"]),
        statement(sweeps=[{"name": "lr", "runs": "many"}]),
        statement(sweeps=[{"name": "lr", "runs": 3, "place": 1}]),
    ],
    ids=repr,
)
def test_what_is_not_a_claim_is_said_so(tmp_path, content):
    with pytest.raises(ConfigError, match=r"claim\.json: is not a claim"):
        read(tmp_path, content)


def test_a_missing_claim_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Claim.read(tmp_path / "none.json")


def test_segments_are_chosen_evenly_by_a_word():
    segments = list(pairwise(range(0, 50, 10)))
    words = [str(number) for number in range(400)]
    for count in (1, 3):
        uses = Counter(one for word in words for one in choose(segments, count, word))
        assert all(0.8 < uses[one] / (100 * count) < 1.2 for one in segments), uses
    assert choose(segments, 9, "word") == segments
    assert choose(segments, 2, "word") == choose(segments, 2, "word")


def test_paths_are_said_and_absolute_ones_need_an_option(capsys):
    check_paths({"data": {"path": "data/a.csv"}}, with_paths=False)
    assert "data.path=data/a.csv" in capsys.readouterr().err
    for path in ("/data/a.csv", "~/a.csv"):
        with pytest.raises(ConfigError, match="--with-paths"):
            check_paths({"data": {"path": path}}, with_paths=False)
        check_paths({"data": {"path": path}}, with_paths=True)


def test_changes_that_nobody_has_stored_are_counted():
    assert unstored_of({}) is None and unstored_of({"unstored": None}) is None
    found = unstored_of({"unstored": {"lost": ["x" * 200] * 9}})
    assert found == {"count": 9, "first": ["x" * 80] * 4}


TRIAL = Trial(Goal("val/loss", "minimize"), 0, {"optimizer.lr": 0.1}).as_data("gpt-study")


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("alone", []),
        ("low", [{"name": "lr", "runs": 4, "place": 1, "metric": "val/loss"}]),
        ("high", [{"name": "lr", "runs": 4, "place": 3, "metric": "val/loss"}]),
        ("failed", [{"name": "lr", "runs": 4}]),
        (
            "trial",
            [
                {"name": "gpt-study", "runs": 1, "place": 1, "metric": "val/loss"},
                {"name": "lr", "runs": 4, "place": 2, "metric": "val/loss"},
            ],
        ),
    ],
)
def test_a_run_is_one_of_the_runs_of_its_sweeps_and_searches(tmp_path, id, expected):
    make = run_maker(tmp_path)
    values = {"alone": 0.1, "low": 0.25, "trial": 0.5, "high": 0.75, "failed": None}
    for name, value in values.items():
        best = {"metric": "val/loss", "value": value, "step": 10} if value else None
        config = {"run": {"sweep": None if name == "alone" else "lr"}}
        folder = make("mlp" if name == "low" else "gpt", name, config=config, best=best)
        if name == "trial":
            record = json.loads(folder.record_path.read_text())
            folder.record_path.write_text(json.dumps(record | {"trials": [TRIAL]}))
            shutil.copytree(folder.path, tmp_path / "gpt" / "copy")
    (path,) = tmp_path.glob(f"*/{id}")
    found = sweeps_of(StoredRun.read(path))
    assert found == expected
    texts = [describe_sweep(sweep) for sweep in found]
    if id == "low":
        assert texts == ["it is one of 4 runs of lr, number 1 by the best val/loss"]
    if id == "failed":
        assert texts == ["it is one of 4 runs of lr"]


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        ({"data": {"url": "s3://a/b", "path": "a.csv"}}, "data.url=s3://a/b is of the network"),
        ({"data": {"dataset": {"files": ["other/a"]}}}, "data.dataset.files.0=other/a is not here"),
        ({"model": {"pretrained": "gpt2"}}, "model.pretrained=gpt2 is of the network"),
        ({"model": {"pretrained": "here/model"}}, None),
        ({"data": {"path": "<folder>/here/*", "name": "digits"}, "model": {"x": None}}, None),
    ],
)
def test_data_that_are_not_known_are_named(tmp_path, monkeypatch, identity, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "model").mkdir(parents=True)
    (tmp_path / "here" / "model" / "weights").touch()
    found = why_not_data(identity)
    assert found is None if reason is None else str(found).startswith(reason)


@pytest.mark.parametrize("count", [3, 16, 17])
def test_many_files_have_one_digest(tmp_path, monkeypatch, count):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for number in range(count):
        (tmp_path / "data" / f"{number:02}.csv").write_text(str(number))
    identity = {"data": {"files": "<folder>/data/*.csv"}}
    before = data_of(identity)
    assert len(before.get("files", {})) == (count if count <= 16 else 0)
    (tmp_path / "data" / "01.csv").write_text("2")
    assert data_of(identity) != before


@pytest.mark.parametrize("length", [1, 15, 16, 17, 1000])
def test_a_claim_lists_as_much_of_the_chain_as_it_has_room_for(length):
    lines = [f"{number} {'0' * 64}" for number in range(length)]
    files = {f"data/{number}.csv": f"1 {'0' * 64}" for number in range(16)}
    made = statement(chain={"root": "", "length": length, "lines": lines}, data={"files": files})
    text = fit(made)
    listed = json.loads(text)["predicate"]["chain"]["lines"]
    assert listed[-1] == lines[-1] and len(set(listed)) == len(listed) <= min(length, 16)
    assert len(text) < 4100 and (length == 1 or len(listed) > 1)


@pytest.mark.parametrize(("lanes", "named", "expected"), [(4, 1, 1), (4, 4, 4), (None, 4, 4)])
def test_ranks_that_train_here(tmp_path, lanes, named, expected):
    assert ranks_for(read(tmp_path, statement(lanes=lanes)), named) == expected


def test_other_ranks_without_lanes_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match="use --ranks=4"):
        ranks_for(read(tmp_path, statement()), 2)


@pytest.mark.parametrize(
    ("git", "diff", "expected"),
    [
        (None, None, "did not start in a git repository"),
        ({"commit": "c", "dirty": True}, None, "has no code.diff"),
        ({"commit": "c", "dirty": True}, "# commit: c\n", "has no change"),
        ({"commit": "c", "dirty": True}, "# left out: mine.py: too large\n", "has no change"),
        ({"commit": "c", "dirty": False}, None, None),
        ({"commit": "c", "dirty": True}, f"# commit: {'c' * 40}\ndiff --git a b\n", None),
    ],
)
def test_a_run_of_unknown_code_cannot_be_claimed(tmp_path, git, diff, expected):
    (tmp_path / "sources.json").write_text('{"mine.py": "digest"}')
    if diff is not None:
        (tmp_path / "code.diff").write_text(diff)
    reason = why_not_code(RunOnDisk(str(tmp_path), {"git": git}), tmp_path)
    assert (reason or "") == "" if expected is None else expected in str(reason)


def test_a_run_that_cannot_be_read_is_not_claimed(tmp_path):
    assert why_not(RunOnDisk(str(tmp_path), {}), [], tmp_path) == "its run.json cannot be read"


def attempt(start, ranks=1, size=8, changes=()):
    trained = {"changes": [*changes]}
    layout = {"world_size": ranks, "micro_batch_size": size}
    return {"start_step": start, "end_step": start + 5, "trained": trained, **layout}


@pytest.mark.parametrize(
    ("attempts", "lanes", "expected"),
    [
        ([attempt(0), attempt(5)], None, None),
        ([attempt(0), attempt(5, changes=["git.commit: a -> b"])], None, None),
        ([attempt(0), attempt(5, changes=["a.py: was edited."])], 2, "after 5 .*a.py: was edited"),
        ([attempt(0), attempt(5, changes=["versions.torch: 2 -> 3"])], None, "after 5 .*torch"),
        ([attempt(0), attempt(5, changes=["processor: A -> B"])], None, "after 5 .*processor"),
        ([attempt(0, changes=["a.py: is new."])], None, "after 0 .*is new"),
        ([attempt(0), attempt(5, ranks=2, size=4)], None, "after 5 .* on 2 ranks with 4 samples"),
        ([attempt(0), attempt(5, size=4)], None, "1 rank with 4 samples a pass"),
        ([attempt(0), attempt(5, ranks=2, size=4)], 2, None),
    ],
)
def test_steps_that_were_not_trained_alike_cannot_be_claimed(attempts, lanes, expected):
    reason = why_not_alike(attempts, lanes)
    assert reason is None if expected is None else re.search(expected, str(reason))


def test_the_commit_of_a_claim_is_the_one_that_its_diff_applies_to(tmp_path):
    run = RunOnDisk(str(tmp_path), {"git": {"commit": "b" * 40}})
    assert commit_of(run) == "b" * 40
    (tmp_path / "code.diff").write_text(f"# commit: {'a' * 40}\n")
    assert commit_of(run) == "a" * 40


@pytest.mark.parametrize(
    ("machine", "versions", "expected"),
    [
        ({}, {}, ""),
        ({"processor": "another"}, {}, "it was trained on another, "),
        ({}, {"torch": "1.0"}, "it was trained with torch 1.0"),
    ],
)
def test_another_kind_of_machine_is_named(tmp_path, machine, versions, expected):
    here = machine_state("cpu", 1, cpu_kernels())
    known = {**current_versions(("torch", "numpy")), **versions}
    text = other_machine(read(tmp_path, statement(machine=here | machine, versions=known)), "cpu")
    assert text.startswith(expected) and bool(text) == bool(expected)
