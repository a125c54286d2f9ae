"""Time of a resume until its first step, with the checkpoint read ahead and without.

    python -m benchmarks cold_resume --repeats 7
    python -m benchmarks cold_resume --cgroup /sys/fs/cgroup/blkio/slow    # a slow disk

A gpt of 84 million parameters, whose checkpoint has 1.0 GB, is paused at a step and resumed again
and again, in alternating order: with the checkpoint in the page cache (warm), and without (cold).
Seconds are from the start of the process; CPU seconds are of all its threads. A cgroup with a limit
of bytes read (blkio.throttle.read_bps_device, or rbps in io.max) makes a slow disk of any; each
resume joins it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import ROOT
from launcher import BaseHook

SETTINGS = [
    "data=synthetic", "data.vocab_size=8192", "data.seq_len=16", "data.batch_size=1",
    "data.num_val_samples=0", "model=gpt", "model.dim=768", "model.num_layers=11",
    "model.num_heads=12", "trainer.max_steps=20", "strategy=none", "device=cpu",
    "hooks=[checkpointing]", "hooks.checkpointing.best_metric=null",
    "+hooks.end={_target_: benchmarks.cold_resume.End}",
]  # fmt: skip
SAVED_AT = 2
CODE = """
import sys
if sys.argv.pop(1) == "without":
    import launcher.checkpoint.read_ahead
    launcher.checkpoint.read_ahead._read = lambda *_: None
from launcher.__main__ import main
main()
"""


class End(BaseHook):
    """Ends the process at the first step of a resume, and prints the time."""

    changes_numbers = False

    def on_before_step(self, trainer: Any) -> None:
        if trainer.step > SAVED_AT:
            print(time.time(), time.process_time(), flush=True)
            os._exit(0)


def evict(file: Path) -> None:
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resume(way: str, overrides: list[str], cgroup: Path | None) -> tuple[float, float]:
    """Return the seconds and CPU seconds of a process until the first step."""

    def join() -> None:
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    command, start = [sys.executable, "-c", CODE, way, *overrides], time.time()
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=join
    )
    end, cpu = map(float, done.stdout.split()[-2:])
    return end - start, cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cgroup", type=Path, help="that each resume joins")
    parser.add_argument("--folder", help="where the run is; default: the temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        overrides = [*SETTINGS, f"paths.outputs={folder}"]
        pause = [sys.executable, "-m", "launcher", *overrides, f"trainer.pause_at={SAVED_AT}"]
        subprocess.run(pause, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (file,) = Path(folder).glob(f"*/*/checkpoints/step-{SAVED_AT:08d}/shard-*")
        figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for repeat in range(arguments.repeats):
            for cache in ("cold", "warm"):
                for way in ("without", "with")[:: -1 if repeat % 2 else 1]:
                    if cache == "cold":
                        evict(file)
                    else:
                        file.read_bytes()
                    figure = resume(way, overrides, arguments.cgroup)
                    figures.setdefault((cache, way), []).append(figure)
                    print(cache, way, *figure, file=sys.stderr, flush=True)
    print(f"{'':14s}{'seconds':>9s}  {'range':15s}{'CPU s':>7s}")
    for name, values in figures.items():
        seconds, cpu = zip(*values, strict=True)
        bounds = f"{min(seconds):.2f} to {max(seconds):.2f}"
        print(f"{' '.join(name):14s}{median(seconds):9.2f}  {bounds:15s}{median(cpu):7.2f}")


if __name__ == "__main__":
    main()
