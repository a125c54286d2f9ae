"""The chain of checkpoints: its digests, how it is continued and cut, and kills at its writes."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from launcher.checkpoint import chain
from launcher.checkpoint.chain import BrokenChain, ChainWriter, read_chain
from launcher.checkpoint.digests import EarlyDigests, digests_of
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import Saver
from launcher.checkpoint.store import CheckpointStore
from launcher.process.ranks import Ranks
from launcher.rundir.folder import RunFolder
from launcher.rundir.lock import RunLock
from launcher.rundir.step_lines import set_lines_aside
from launcher.runs.act import rollback
from launcher.strategies.base import ShardSpec
from support.crash import cut_power, killed
from support.stores import payload, save


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "name" / "id").create()


@pytest.fixture
def store(run):
    return CheckpointStore(run.checkpoints)


def begun(run, store, step=0, parent=None):
    """A writer that the store calls, as a start attaches it."""
    writer = ChainWriter(run, store.root, lambda: None)
    writer.begin(step, parent)
    store.chain = writer
    return writer


def steps_of(run):
    return [link.step for link in read_chain(run.chain_path)]


def test_each_checkpoint_has_a_line_that_stays_when_it_is_deleted(run, store):
    writer = begun(run, store)
    for step in (5, 10, 15):
        save(store, step, keep=0)
    writer.finish()
    links = read_chain(run.chain_path)
    assert [link.step for link in links] == [5, 10, 15] and store.steps() == [15]
    assert links[0].before == "" and links[1].before == links[0].digest
    assert (links[-1].numbers, links[-1].rest) == digests_of(store.path(15))


def test_a_line_is_not_written_once_the_run_is_released(run, store, caplog):
    """The process lives on after a signal, and hashes a checkpoint that another may replace."""
    with RunLock(run) as lock:
        writer = ChainWriter(run, store.root, lock.check)
        store.chain = writer
        save(store, 5)
        writer.finish()
    save(store, 10)
    writer.finish()
    assert steps_of(run) == [5] and not caplog.records
    begun(run, store, 10).finish()
    assert steps_of(run) == [5, 10]


def test_digests_of_memory_are_those_of_the_disk(run, store):
    """However many of them a save has found when it has written its files."""
    full = {
        "model/w": torch.arange(6, dtype=torch.bfloat16).view(2, 3).t(),
        "model/none": torch.empty(0, 3),
        "optimizer/step": torch.tensor(3),
    }
    tensors = {**full, "model/shard": torch.arange(4.0)}
    part = {"model/shard": ShardSpec((4,), (0,))}
    writer = begun(run, store)
    Saver(store, Ranks(), Retention()).save(
        replace(payload(5), tensors=tensors, parts=part), wait=True
    )
    writer.finish()
    with EarlyDigests(full) as early:
        while len(early.found) < len(full):
            time.sleep(0.001)
    for count in range(len(full) + 1):
        found = dict(list(early.found.items())[:count])
        assert digests_of(store.path(5), found) == digests_of(store.path(5))
    assert read_chain(run.chain_path)[-1].numbers == digests_of(store.path(5))[0]


def test_a_step_that_is_saved_again_has_one_line(run, store):
    writer = begun(run, store)
    save(store, 5)
    save(store, 10)
    save(store, 10, value=3.0)
    writer.finish()
    assert steps_of(run) == [5, 10]
    assert read_chain(run.chain_path)[-1].numbers == digests_of(store.path(10))[0]


def test_a_start_cuts_the_chain_and_adds_what_is_missing(run, store):
    save(store, 5)
    save(store, 10)
    begun(run, store, 10).finish()
    assert steps_of(run) == [5, 10]
    whole = run.chain_path.read_bytes()
    run.chain_path.write_bytes(whole[:-20])
    begun(run, store, 10).finish()
    assert run.chain_path.read_bytes() == whole
    store.remove(10)
    begun(run, store, 5).finish()
    assert steps_of(run) == [5]


@pytest.mark.parametrize("has_line", [True, False])
def test_a_fork_begins_with_the_line_of_its_parent(run, store, tmp_path, has_line):
    for step in (5, 10):
        save(store, step)
    if has_line:
        begun(run, store, 10).finish()
    fork = RunFolder(tmp_path / "name" / "fork").create()
    begun(fork, CheckpointStore(fork.checkpoints), 10, parent=store.path(10)).finish()
    (link,) = read_chain(fork.chain_path)
    assert (link.numbers, link.rest) == digests_of(store.path(10))
    assert bool(link.before) == has_line


@pytest.mark.parametrize(
    ("key", "value", "changed"),
    [
        ("tensors", {"model/w": torch.full((4,), 5.0, dtype=torch.float64)}, "numbers"),
        ("tensors", {"model/w": torch.full((2, 2), 5.0)}, "numbers"),
        ("tensors", {"model/v": torch.full((4,), 5.0)}, "numbers"),
        ("global_state", {"step": 6}, "numbers"),
        ("global_state", {"step": 5.0}, "numbers"),
        ("rank_state", {"rng": torch.arange(3) + 1, "hooks": {}}, "rest"),
        ("rank_state", {"rng": torch.arange(3), "hooks": {"a": {"b": {1, 2}}}}, "rest"),
        ("rank_state", {"rng": torch.arange(3), "hooks": {"a": {"train/step_time": 2}}}, ""),
        ("global_state", {"step": 5, "max_steps": 7}, ""),
    ],
)
def test_digests_change_with_what_counts(run, store, key, value, changed):
    plain = replace(payload(5), rank_state={"rng": torch.arange(3), "hooks": {"a": {}}})
    found = []
    for state in (plain, replace(plain, **{key: value})):
        Saver(store, Ranks(), Retention()).save(state, wait=True)
        found.append(digests_of(store.path(5)))
    differing = [
        name for name, one, two in zip(("numbers", "rest"), *found, strict=True) if one != two
    ]
    assert differing == ([changed] if changed else [])


@pytest.mark.parametrize("change", ["step", "numbers", "rest", "before", "run"])
def test_a_changed_line_breaks_the_chain(run, store, change):
    writer = begun(run, store)
    for step in (5, 10, 15):
        save(store, step)
    writer.finish()
    lines = run.chain_path.read_bytes().splitlines(keepends=True)
    data = json.loads(lines[1]) | {change: 7 if change == "step" else "other"}
    lines[1] = json.dumps(data, separators=(",", ":")).encode() + b"\n"
    run.chain_path.write_bytes(b"".join(lines))
    with pytest.raises(BrokenChain, match=r"line [23] does not follow"):
        read_chain(run.chain_path)


@dataclass
class Kill:
    """A write of the chain that is killed, and the steps of its lines when it is repeated."""

    lines: int
    """Lines that it has before."""
    act: Callable[[RunFolder, CheckpointStore], None]
    steps: list[int]


def start_at(step: int, fork: bool = False) -> Callable[[RunFolder, CheckpointStore], None]:
    def act(run: RunFolder, store: CheckpointStore) -> None:
        if fork:
            own = CheckpointStore(run.path / "own")
            begun(run, own, step, parent=store.path(step)).finish()
        else:
            begun(run, store, step).finish()

    return act


KILLS = {
    "the first line": Kill(0, lambda run, store: append(run, store, 5), [5]),
    "a further line": Kill(1, lambda run, store: append(run, store, 10), [5, 10]),
    "a line again": Kill(2, lambda run, store: append(run, store, 10), [5, 10]),
    "a cut": Kill(3, start_at(5), [5]),
    "all that are missing": Kill(0, start_at(15), [5, 10, 15]),
    "some that are missing": Kill(1, start_at(15), [5, 10, 15]),
    "a fork": Kill(0, start_at(10, fork=True), [10]),
    "a shared start": Kill(0, lambda run, store: copied(run, store, 10), [5, 10]),
}


def append(run, store, step):
    chain.append(run.chain_path, store.path(step), lambda: None, {})


def copied(run, store, step):
    source = run.path / "source.jsonl"
    if not source.exists():
        for saved in (5, 10, 15):
            chain.append(source, store.path(saved), lambda: None, {})
    chain.copy_lines(source, run.chain_path, step)


@pytest.mark.parametrize("name", KILLS)
def test_a_write_that_is_killed_at_any_call_is_continued_when_it_is_repeated(run, store, name):
    kill = KILLS[name]
    for step in (5, 10, 15):
        save(store, step)
    begun(run, store, 15).finish()
    lines = run.chain_path.read_bytes().splitlines(keepends=True)
    kill_at, died = 0, True
    while died:
        kill_at += 1
        for file in run.path.glob("*chain.jsonl*"):
            file.unlink()
        if kill.lines:
            run.chain_path.write_bytes(b"".join(lines[: kill.lines]))
        died, calls = killed(lambda: kill.act(run, store), kill_at)
        cut_power(calls)
        kill.act(run, store)
        links = read_chain(run.chain_path)
        assert [link.step for link in links] == kill.steps, f"killed at call {kill_at}"
        assert links[-1].numbers == digests_of(store.path(links[-1].step))[0]
    assert kill_at >= 4, "too few calls were seen"


def test_a_shared_start_continues_the_lines_of_the_other_run(run, store, tmp_path):
    for step in (5, 10):
        save(store, step)
    begun(run, store, 10).finish()
    other = RunFolder(tmp_path / "name" / "other").create()
    chain.copy_lines(run.chain_path, other.chain_path, 5)
    shared = CheckpointStore(other.checkpoints)
    for step in (5, 12):
        save(shared, step)
    begun(other, shared, 12).finish()
    links = read_chain(other.chain_path)
    assert links[0] == read_chain(run.chain_path)[0]
    assert [link.step for link in links] == [5, 12] and links[1].before == links[0].digest


def test_a_rollback_cuts_the_chain(run, store):
    for step in (5, 10):
        save(store, step)
    begun(run, store, 10).finish()
    assert run.chain_path.name in rollback.FILES
    set_lines_aside(run.chain_path, 5)
    assert steps_of(run) == [5]
    assert (run.path / "abandoned-chain.jsonl").exists()
