"""`runs replay`: steps that are trained again, over attempts, ranks and a rollback."""

from collections import Counter
from pathlib import Path
from shlex import split

from support import python
from support.indexed import noted
from support.runner import launch, start

RUN = split(
    "data=custom data.dataset._target_=support.indexed.Indexed +data.dataset.size=50"
    " data.batch_size=12 data.num_features=2 data.num_classes=2 model=mlp model.hidden_dim=4"
    " run.id=a1 strategy=ddp trainer.max_steps=13 hooks.logging.interval=4"
    " hooks.checkpointing.interval=3 hooks.checkpointing.keep_previous=9"
    " hooks.checkpointing.best_metric=null device=cpu"
)


def replay(outputs: Path, *words: str) -> tuple[int, str]:
    where = ("--outputs", str(outputs))
    process = start("-m", "launcher.runs", *where, "replay", "mlp-custom", *words)
    output, _ = process.communicate()
    return process.returncode, output


def files(outputs: Path) -> dict[str, int]:
    return {
        str(path): path.stat().st_mtime_ns for path in sorted(outputs.rglob("*")) if path.is_file()
    }


def test_replay_repeats_a_run_of_two_attempts(tmp_path):
    attempts = [
        ("dispatch.nproc=2", "trainer.pause_at=8"),
        ("dispatch.nproc=1", "trainer.micro_batch_size=4", "data.num_workers=1"),
    ]
    seen: dict[int, list[int]] = {}
    for number, words in enumerate(attempts):
        if number:
            outputs = str(tmp_path / "outputs")
            python.run("-m", "launcher.runs", "rollback", "a1", "6", "--outputs", outputs)
        folder = tmp_path / f"witness-{number}"
        witness = f"+tracker.witness={{_target_:support.indexed.Noting,folder:{folder}}}"
        launch(tmp_path / "outputs", *RUN, *words, witness, code=0)
        seen |= noted(folder)  # a step that is computed again counts as it was computed last
    uses = Counter(index for step in seen.values() for index in step)
    assert len(uses) == 50 and Counter(uses.values()) == {3: 44, 4: 6}, "once in each epoch"
    before = files(tmp_path / "outputs")
    code, output = replay(tmp_path / "outputs", "--from=3", "--to=6", "--scratch", str(tmp_path))
    assert code == 0, output
    assert output.startswith(
        "mlp-custom/a1, steps 3 to 6: bitwise identical (24 tensors, 1 line of"
    )
    code, output = replay(tmp_path / "outputs", "--from=6", "--to=12")
    assert code == 0, output
    assert files(tmp_path / "outputs") == before
