"""A hook that writes down which samples the model really gets. It is configured as a tracker, which
is not part of a run's identity."""

import json
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

from launcher import BaseHook


class Witness(BaseHook):
    """Writes a line for each micro-batch of this rank, with a checksum of each sample, into
    `witness-<first step>-<world size>-<rank>.jsonl` in the run's folder."""

    def __init__(self) -> None:
        self.path: Path | None = None

    def on_batch(self, trainer: Any, batch: Any) -> None:
        if self.path is None:
            ranks = trainer.strategy.ranks
            name = f"witness-{trainer.step:08d}-{ranks.world_size}-{ranks.rank:02d}.jsonl"
            self.path = trainer.workspace / name
            self.path.write_text("")
        samples = [zlib.crc32(sample.numpy().tobytes()) for sample in batch[0]]
        with open(self.path, "a") as file:
            file.write(json.dumps({"step": trainer.step, "samples": samples}) + "\n")


def samples_of_steps(folder: Path) -> dict[int, list[int]]:
    """The samples of each step in their global order: micro-batch after micro-batch, in each rank
    after rank. Of a step that was computed by several starts, those of the last one."""
    steps: dict[int, list[int]] = {}
    starts = {
        path.name.rpartition("-")[0]: path.stat().st_mtime
        for path in folder.glob("witness-*.jsonl")
    }
    for start in sorted(starts, key=lambda start: (start.split("-")[1], starts[start])):
        of_ranks = [_read(path) for path in sorted(folder.glob(f"{start}-*.jsonl"))]
        for step in of_ranks[0]:
            # The last step may be cut short.
            micro_batches = zip(*(own[step] for own in of_ranks), strict=False)
            steps[step] = [
                sample for together in micro_batches for part in together for sample in part
            ]
    return steps


def _read(path: Path) -> dict[int, list[list[int]]]:
    steps = defaultdict(list)
    for line in map(json.loads, path.read_text().splitlines()):
        steps[line["step"]].append(line["samples"])
    return steps
