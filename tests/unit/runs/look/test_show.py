import json
import os

import pytest

from launcher.checkpoint.chain import Link
from launcher.runs.find_runs import find_run
from launcher.runs.look.report import describe_run
from launcher.runs.look.show import facts, tables

CHOICES = {"model": "gpt", "hooks": ["default", "early_stopping"], "experiment": None}


def test_all_there_is_to_know(runs, make_run):
    folder = make_run(
        "gpt",
        "aaaa0001",
        overrides=["optimizer.lr=0.1", "model=gpt"],
        choices={**CHOICES, "hydra/output": "default"},
        state="preempted",
        step=8,
        loss=2.5,
        best={"metric": "val/loss", "value": 1.25, "step": 8},
        rows=[{"step": 1, "val/loss": 4.0, "time": 0.5}, {"step": 8, "train/loss": 2.5}],
    )
    for name in ("step-00000008", "corrupt-step-00000004", ".tmp-step-00000009"):
        (folder.checkpoints / name).mkdir(parents=True)
    (folder.checkpoints / "step-00000008" / "manifest.json").write_bytes(b"x" * 1500)
    for name in ("latest", "best"):
        os.symlink("step-00000008", folder.checkpoints / name)
    code, output, _ = runs("show", "aaaa")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert code == 0 and ".tmp" not in output
    for line in (
        "run gpt/aaaa0001",
        f"folder {folder.path}",
        "state preempted",
        "step 8/10",
        "loss 2.5",
        "best 1.25 (val/loss, step 8)",
        "strategy none, 1 rank",
        "time 0 device hours",
        "choices hooks=[default,early_stopping] model=gpt",
        "overrides optimizer.lr=0.1 model=gpt",
        "step size age state",
        "8 1.5 kB 0s damaged, latest, best",
        "4 0 B 0s set aside",
        "9 0 B 0s unfinished",
        "train/loss 2.5 step 8",
        "val/loss 4 step 1",
    ):
        assert line in lines, line
    assert any(line.startswith("1 ") and "0 to 8 preempted" in line for line in lines)


def test_a_run_whose_process_died_unseen(runs, make_run, outputs):
    make_run("gpt", "aaaa0001", state="stale", step=3)
    _, output, _ = runs("show", "gpt")
    assert "0 to 3" in output and output.count("stale") == 2 and "pid" in output
    narrow = [*tables(find_run("gpt", outputs), 40)][1]
    assert "outcome" in narrow.headings and "pid" not in narrow.headings


FIRST = Link(4, "gpt/aaaa0001", "f" * 64, "0" * 64, "")
SECOND = Link(8, "gpt/aaaa0001", "e" * 64, "0" * 64, FIRST.digest)


@pytest.mark.parametrize(
    ("chain", "shown"),
    [
        (None, ""),
        (b"", ""),
        (FIRST.line, f"{'f' * 64} at step 4"),
        (FIRST.line + SECOND.line, f"{'e' * 64} at step 8"),
        (SECOND.line + FIRST.line, "chain.jsonl: line 2 does not follow from the one before"),
        (FIRST.line[:-9], "chain.jsonl: line 1 does not follow from the one before"),
    ],
)
def test_the_digest_of_the_newest_checkpoint_is_read_from_the_chain(
    make_run, outputs, chain, shown
):
    folder = make_run("gpt", "aaaa0001")
    if chain is not None:
        folder.chain_path.write_bytes(chain)
    run = find_run("gpt", outputs)
    assert facts(run)["digest"] == shown
    command = "python -m launcher.runs checkpoints --digest gpt/aaaa0001"
    assert describe_run(run, {}, {}, 1)["digest"] == (shown or command)


def test_a_chain_that_cannot_be_read_is_said_so(make_run, outputs):
    make_run("gpt", "aaaa0001").chain_path.mkdir()
    shown = facts(find_run("gpt", outputs))["digest"]
    assert shown == "chain.jsonl cannot be read (it is a folder)"


def test_notes_and_labels_are_written_and_filtered_by(runs, make_run):
    for number in (1, 2):
        make_run("gpt", f"cccc000{number}", choices=CHOICES, config={"run": {"note": "at first"}})
    assert runs("show", "model=gpt", "--label", "new")[1].count(": [new] at first") == 2
    assert runs("show", "cccc0001", "--note", "a good one", "--label", "paper")[0] == 0
    assert runs("show", "cccc0001", "--unlabel", "new")[1] == "gpt/cccc0001: [paper] a good one\n"
    assert runs("show", "cccc0001", "--label", "a b")[0] == 2
    assert "a good one" in runs("show", "cccc0001")[1]
    (listed,) = json.loads(runs("list", "label=paper", "--json")[1])
    assert (listed["id"], listed["note"], listed["labels"]) == ("cccc0001", "a good one", ["paper"])
