"""`runs replay` names the cause of each planted fault; tests/unit/proof/test_resume_check.py plants
those of a resume for job=resume_check."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import split

from launcher.checkpoint.durable_files import FileEntry, hash_file
from launcher.checkpoint.manifest import Manifest
from support.runner import run_folder, start

RUN = split(
    "data=custom data.batch_size=8 data.num_features=2 data.num_classes=2 device=cpu run.name=run"
    " trainer.max_steps=6 hooks=[default] hooks.logging.interval=1 hooks.checkpointing.interval=2"
    " hooks.checkpointing.keep_previous=9 hooks.checkpointing.best_metric=null"
)
MLP = ("model=mlp", "model.hidden_dim=4", "data.dataset._target_=mine.Mine")
MINE = """from support.forgetful import Numbers


class Mine(Numbers):
    pass
"""
TENSOR = "model/blocks.0.0.bias"


def run(cwd: Path, *words: str) -> tuple[int, str]:
    process = start("-m", *words, cwd=cwd)
    output, _ = process.communicate()
    return process.returncode, output


def replay(cwd: Path, *words: str) -> tuple[int, list[str]]:
    code, output = run(cwd, "launcher.runs", "replay", "run", *words)
    return code, output.splitlines()


def flip_bit(folder: Path, step: int = 6) -> None:
    """Change the lowest bit of a weight in a checkpoint, with a manifest that says so."""
    checkpoint = folder / "checkpoints" / f"step-{step:08d}"
    shard = next(checkpoint.glob("shard-*.safetensors"))
    data = bytearray(shard.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    data[start + header[TENSOR]["data_offsets"][0] + 4 * 3] ^= 1
    shard.write_bytes(data)
    replace_entry(checkpoint, hash_file(shard))


def replace_entry(checkpoint: Path, entry: FileEntry) -> None:
    manifest = Manifest.read(checkpoint)
    files = [entry if old.name == entry.name else old for old in manifest.files]
    replace(manifest, files=files).write(checkpoint)


def flip_bit_and_edit_line(folder: Path) -> None:
    flip_bit(folder)
    metrics = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    next(line for line in lines if line["step"] == 6)["train/loss"] += 1e-9
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit_code(folder: Path) -> None:
    """Change a class, and the number of threads that a checkpoint says it was trained with."""
    machine = folder / "checkpoints" / "step-00000006" / "machine.yaml"
    machine.write_text(machine.read_text().replace("threads: 1", "threads: 2"))
    replace_entry(machine.parent, hash_file(machine))
    changed = "    def __getitem__(self, i): return super().__getitem__((i + 1) % 24)"
    (folder.parents[2] / "mine.py").write_text(MINE.replace("    pass", changed))


CHANGES: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "a bit and a line": (
        flip_bit_and_edit_line,
        [
            f"  checkpoint, {TENSOR}: 1 of 4 elements",
            "  metrics.jsonl, step 6: train/loss ",
            "  cause: No state is missing after a resume",
        ],
    ),
    "a bit of the checkpoint before": (
        partial(flip_bit, step=4),
        [
            "  cause: The first difference: the ",
            "  cause: Not restored: ",
            "  cause: The checkpoint of step 4 is not the state of a training up to it:",
        ],
    ),
    "code and threads": (edit_code, ["  now: mine.py: was edited.", "  now: threads: 2 -> 1"]),
}


def test_what_changed_after_a_run_is_named(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    code, output = run(tmp_path, "launcher", *RUN, *MLP)
    assert code == 0, output
    folder = run_folder(tmp_path / "outputs")
    for name, (change, expected) in CHANGES.items():
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        change(folder)
        code, lines = replay(tmp_path, "--from=4")
        assert code == 1 and any("steps 4 to 6: different." in line for line in lines), lines
        for text in expected:
            assert any(line.startswith(text) for line in lines), (name, text, lines)
        assert any(line.startswith("  cause: ") for line in lines) == ("cause" in "".join(expected))
        for path, content in before.items():
            path.write_bytes(content)
