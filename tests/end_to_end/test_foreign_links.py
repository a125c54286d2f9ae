"""No verb writes through a link that leads out of a run's folder."""

import shutil
from pathlib import Path
from shlex import split

import pytest

from launcher.runs.__main__ import VERBS
from support import python
from support.runner import launch, run_folder

COMMAND = split(
    "model=mlp data=digits model.hidden_dim=8 trainer.max_steps=6 hooks.evaluation.interval=3"
    " hooks.evaluation.max_samples=20 tracker=tensorboard"
)
MORE = {
    "resume": ["trainer.max_steps=8"],
    "checkpoints": ["--delete", "--keep", "latest", "--yes"],
    "sync": ["tracker=tensorboard"],
    "predict": ["--splits", "val"],
    "rollback": ["2"],
}
"""Arguments of a verb after the run."""
WRITING = {"resume", "plot", "export", "evaluate"}
OUTSIDE = b"a file of mine\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    launch(folder, *COMMAND, code=0)
    return folder


def act(verb: str, outputs: Path) -> None:
    """Run a verb on the run of a copy, whatever it answers."""
    run = run_folder(outputs)
    words = [run.name, *MORE.get(verb, [])]
    if verb == "report":
        words += ["--output", str(run / "report.html")]
    python.run("-m", "launcher.runs", verb, *words, "--outputs", str(outputs), cwd=outputs.parent)


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_mtime_ns, path.lstat().st_ino)
        for path in folder.rglob("*")
        if not path.is_dir()
    }


READING = {"list", "show", "logs", "compare", "test", "watch", "replay", "reproduce", "fork"}


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in READING])
def test_nothing_is_written_through_a_link_out_of_a_run(trained, tmp_path, verb):
    shutil.copytree(trained, tmp_path / "first", symlinks=True)
    run = run_folder(tmp_path / "first")
    before = files(run)
    act(verb, tmp_path / "first")
    after = files(run)
    changed = [name for name, stamp in after.items() if stamp != before.get(name)]
    written = [name for name in changed if not name.startswith("checkpoints/")]
    assert written or verb not in WRITING
    if not written:
        return

    shutil.copytree(trained, tmp_path / "second", symlinks=True)
    (tmp_path / "outside").mkdir()
    for index, name in enumerate(written):
        path = run_folder(tmp_path / "second") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for link in (path, path.with_name(f".{path.name}.tmp")):
            outside = tmp_path / "outside" / f"{index}{link.name}"
            # A file of a run stays readable, so that the verb gets as far as it can.
            outside.write_bytes(link.read_bytes() if link.exists() else OUTSIDE)
            link.unlink(missing_ok=True)
            link.symlink_to(outside)
    expected = files(tmp_path / "outside")
    act(verb, tmp_path / "second")
    assert files(tmp_path / "outside") == expected


@pytest.mark.parametrize("name", ["logs", ".hydra", "export", "checkpoints"])
def test_a_run_with_a_linked_folder_does_not_start(trained, tmp_path, name):
    """Each verb that writes is a message; `checkpoints` may be read."""
    shutil.copytree(trained, tmp_path / "outputs", symlinks=True)
    run = run_folder(tmp_path / "outputs")
    (run / "export").mkdir()
    (run / name).rename(tmp_path / "outside")
    (run / name).symlink_to(tmp_path / "outside")
    expected = files(tmp_path / "outside")
    for verb in ("resume",) if name == "checkpoints" else ("resume", "export", "fork"):
        words = ("launcher.runs", verb, run.name, *MORE.get(verb, []))
        done = python.run("-m", *words, "--outputs", str(run.parent.parent), cwd=tmp_path)
        assert done.returncode == 2 and " is a link to " in done.stderr, done.stderr
        assert files(tmp_path / "outside") == expected
