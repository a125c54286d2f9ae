"""`runs replay` names the cause of each planted fault; tests/unit/jobs/test_resume_check.py plants
those of a resume for job=resume_check."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import xxhash

from launcher.checkpoint.files import entry_of
from launcher.checkpoint.manifest import Manifest
from support.runner import ENVIRONMENT, run_folder, start

RUN = (
    "data=custom",
    "data.batch_size=8",
    "data.num_features=2",
    "data.num_classes=2",
    "device=cpu",
    "run.name=run",
    "trainer.max_steps=6",
    "hooks=[default]",
    "hooks.logging.interval=1",
    "hooks.checkpointing.interval=2",
    "hooks.checkpointing.keep_previous=9",
    "hooks.checkpointing.best_metric=null",
)
MLP = ("model=mlp", "model.hidden_dim=4", "data.dataset._target_=mine.Mine")
MINE = """from support.forgetful import Numbers


class Mine(Numbers):
    pass
"""
TENSOR = "model/blocks.0.0.bias"


def run(cwd: Path, *words: str, **variables: str) -> tuple[int, str]:
    # A forked process has as many threads as the one that it is forked from.
    env, is_real = {**ENVIRONMENT, **variables}, "OMP_NUM_THREADS" in variables
    process = start("-m", *words, cwd=cwd, env=env, real=is_real)
    output, _ = process.communicate()
    return process.returncode, output


def replay(cwd: Path, *words: str, **variables: str) -> tuple[int, list[str]]:
    code, output = run(cwd, "launcher.runs", "replay", "run", *words, **variables)
    return code, output.splitlines()


def flip_bit(folder: Path, step: int = 6) -> None:
    """Change the lowest bit of a weight in a checkpoint, with a manifest that says so."""
    checkpoint = folder / "checkpoints" / f"step-{step:08d}"
    manifest = Manifest.read(checkpoint)
    shard = next(checkpoint.glob("shard-*.safetensors"))
    data = bytearray(shard.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    data[start + header[TENSOR]["data_offsets"][0] + 4 * 3] ^= 1
    shard.write_bytes(data)
    entry = entry_of(shard.name, [(len(data), xxhash.xxh3_128_hexdigest(data))])
    files = [entry if old.name == shard.name else old for old in manifest.files]
    replace(manifest, files=files).write(checkpoint)


def edit_line(folder: Path) -> None:
    metrics = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    next(line for line in lines if line["step"] == 6)["train/loss"] += 1e-9
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit_code(folder: Path) -> None:
    (folder.parents[2] / "mine.py").write_text(
        MINE.replace(
            "    pass", "    def __getitem__(self, i): return super().__getitem__((i + 1) % 24)"
        )
    )


def nothing(folder: Path) -> None: ...


CHANGES: dict[str, tuple[Callable[[Path], None], dict[str, str], list[str]]] = {
    "a bit": (
        flip_bit,
        {},
        [
            f"  checkpoint, {TENSOR}: 1 of 4 elements, the first at [3]: ",
            "  cause: The replay repeats: trainings from steps 2 and 4 agree with it.",
            "  cause: The checkpoint of step 6 was changed later, with its manifest:",
        ],
    ),
    "a bit of the checkpoint before": (
        partial(flip_bit, step=4),
        {},
        [
            "  cause: The first difference: the ",
            "  cause: Not restored: ",
            "  cause: Or the checkpoint of step 4 was changed: a training from step 2 leads to"
            f" other values; {TENSOR}: 1 of 4 elements, the first at [3]: ",
        ],
    ),
    "a line": (
        edit_line,
        {},
        [
            "  metrics.jsonl, step 6: train/loss ",
            "  cause: metrics.jsonl was changed later: the checkpoint of step 6 is equal.",
        ],
    ),
    "code": (edit_code, {}, ["  now: mine.py: was edited."]),
    "threads": (nothing, {"OMP_NUM_THREADS": "2"}, ["  now: threads: 2 instead of 1"]),
}


def test_what_changed_after_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    code, output = run(tmp_path, "launcher", *RUN, *MLP)
    assert code == 0, output
    folder = run_folder(tmp_path / "outputs")
    for name, (change, variables, expected) in CHANGES.items():
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        change(folder)
        code, lines = replay(tmp_path, "--from=4", **variables)
        assert code == 1 and any("steps 4 to 6: different." in line for line in lines), lines
        for text in expected:
            assert any(line.startswith(text) for line in lines), (name, text, lines)
        assert any(line.startswith("  cause: ") for line in lines) == (len(expected) > 1)
        for path, content in before.items():
            path.write_bytes(content)
    assert replay(tmp_path, "--from=4")[0] == 0


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            (
                "data.dataset._target_=support.forgetful.Drawn",
                "model=supervised",
                "model.module._target_=support.forgetful.Counting",
                "+hooks.warmup._target_=support.forgetful.Warmup",
            ),
            [
                "  cause: The first difference: the samples of step 5 on rank 0, after the stop at"
                " step 4.",
                "  cause: Not restored: hook Warmup.count is 0 instead of 2.",
                "  cause: Not restored: module module (Counting).calls is 0 instead of 2.",
                "  cause: Not restored: dataset Drawn.own is generator ",
            ],
        ),
        (
            ("data.dataset._target_=support.forgetful.Clock", "model=mlp", "model.hidden_dim=4"),
            [
                "  cause: This training does not repeat: trained again, it differs, the first time"
                " in the samples of step 5; the dataset, the sampler or the collate function has"
                " state that is not stored, or reads the clock."
            ],
        ),
    ],
)
def test_a_part_that_does_not_repeat_is_named(
    tmp_path: Path, parts: tuple[str, ...], expected: list[str]
) -> None:
    code, output = run(tmp_path, "launcher", *RUN, *parts)
    assert code == 0, output
    code, lines = replay(tmp_path, "--from=4")
    assert code == 1, lines
    for text in expected:
        assert any(line.startswith(text) for line in lines), (text, lines)
