"""A start over a run folder with damaged files: it trains or is rejected with a sentence, and shows
no traceback."""

import shutil
from collections.abc import Callable
from pathlib import Path
from shlex import split

import pytest

from support.runner import Outcome, launch

RUN = split(
    "model=mlp data=digits run.name=n run.id=a trainer.max_steps=4 hooks.evaluation.interval=0"
    " hooks.checkpointing.interval=1 hooks.checkpointing.keep_previous=9"
    " hooks.checkpointing.best_metric=null"
)
OWN = (
    *("run.json", "metrics.jsonl", "chain.jsonl", "media.jsonl", "restarts.json"),
    *("logs/launcher.log", "images"),
)
NEWEST = "checkpoints/step-00000002"
STORED = tuple(
    f"{NEWEST}/{name}" for name in ("state.json", "rank-00000.json", "config.yaml", "code.yaml")
)
GROUPS = {
    "the run's": OWN,
    "Hydra's": (".hydra/config.yaml",),
    "a manifest": (f"{NEWEST}/manifest.json",),
    "a checkpoint's": STORED,
}


def folder(path: Path) -> None:
    (path / "x").mkdir(parents=True)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a folder": folder,
    "nested": lambda path: path.write_bytes(b"[" * 100_000 + b"\n"),
    "NULs": lambda path: path.write_bytes(bytes(5000)),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}


DAMAGED = {"Hydra's": "nested", "a manifest": "NULs", "a checkpoint's": "nested"}


@pytest.fixture(scope="module")
def paused(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("paused")
    launch(outputs, *RUN, "trainer.pause_at=2", code=0)
    return outputs


def start_with(
    outputs: Path, place: Path, files: tuple[str, ...], damage: Callable[[Path], None]
) -> Outcome:
    shutil.copytree(outputs, place, symlinks=True)
    for name in files:
        path = place / "n" / "a" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        damage(path)
    return launch(place, *RUN)


# One function reads the files of a group.
@pytest.mark.parametrize(
    ("group", "damage"), [*(("the run's", damage) for damage in DAMAGES), *DAMAGED.items()]
)
def test_a_start_shows_no_traceback(paused, tmp_path, group, damage):
    done = start_with(paused, tmp_path / "outputs", GROUPS[group], DAMAGES[damage])
    assert "Traceback" not in done.output, done.output
    last = done.output.splitlines()[-1]
    expected = {0: "Completed at step 4" in done.output, 2: "run.dir='" in last}
    assert expected.get(done.returncode), done.output


def test_a_folder_in_place_of_the_lock_is_named(paused, tmp_path):
    done = start_with(paused, tmp_path / "outputs", ("run.lock",), folder)
    assert done.returncode == 2 and "run.lock is a folder" in done.output.splitlines()[-1]
