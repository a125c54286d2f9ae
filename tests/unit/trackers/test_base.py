import shlex

from omegaconf import OmegaConf

from launcher.trackers.base import build_trackers, numbers
from support.file_tracker import FileTracker
from support.tracked import WrittenRun

NODES = {
    "files": {"_target_": "support.file_tracker.FileTracker", "needs": "no_such_library"},
    "jsonl": {"_target_": "launcher.hooks.jsonl.JsonlHook"},
    "gone": None,
}


def test_hooks_in_the_group_are_no_trackers_and_what_is_not_chosen_is_not_imported():
    assert list(build_trackers(OmegaConf.create(NODES))) == ["files"]
    assert build_trackers(NODES, ["jsonl"]) == build_trackers(None) == {}
    assert [*build_trackers({"bad": {"_target_": "no.such.module"}, **NODES}, ["files"])] == [
        "files"
    ]


def test_numbers_are_those_of_the_metrics():
    line = {"step": 1, "time": 2.0, "attempt": 1, "samples": 8, "a/b": 1, "c": "inf", "media": []}
    assert numbers(line) == {"a/b": 1.0, "c": float("inf")}


def test_a_run_as_trackers_see_it(tmp_path):
    words = "model=mlp optimizer.lr=0.1 +data.own=x seed=3 run.tag=b tracker=wandb ~hooks"
    config = {"seed": 3, "model": {"a": 1}, "optimizer": {"lr": 0.1}, "data": {"own": "x"}}
    run = WrittenRun(tmp_path / "name" / "abcd1234", overrides=shlex.split(words), **config)
    seen = run.tracked(FileTracker())
    assert seen.label == "name/abcd1234"
    assert seen.sweep is None
    assert seen.swept == {"model": "mlp", "optimizer.lr": 0.1, "data.own": "x", "seed": 3}
    assert seen.attempt["number"] == 1
    run.lock.release()


def test_state_that_a_tracker_stores_is_read_again(tmp_path):
    """Another folder of the same configuration is another run."""
    ids = []
    for outputs in ("a", "b"):
        run = WrittenRun(tmp_path / outputs / "name" / "abcd1234")
        seen = run.tracked(FileTracker())
        first = seen.stored("files")
        assert seen.stored("files") == first
        seen.store("files", url="u")
        assert seen.stored("files") == {**first, "url": "u"}
        ids.append(first["id"])
        run.lock.release()
    assert ids[0] != ids[1]
    assert all(each.startswith("abcd1234-") for each in ids)
