"""A guard against a slower loop, without timing.

It compares instructions a step, over a hand-written loop, with limits.

    python -m benchmarks.guard        # exit code 1 if a limit is exceeded

All three loops run in one process under callgrind, which takes half a minute of CPU time.
"""

import os
import sys

from benchmarks import callgrind, loop
from benchmarks.measure import ROOT

LIMITS = {"no hooks": 1.03, "default hooks": 1.075}
"""Limits of the ratio. With default hooks, the same calls of Python a step had 1.0571, 1.0601 and
1.0663 in three folders of one machine; three loops in one process differ by half a percent from
three processes."""


def count() -> None:
    """Run in the process that callgrind watches."""
    loop.bare("hand-written")
    loop.by_subclass(list, name="no hooks")
    loop.by_subclass(loop.default_hooks, name="default hooks")


def ratios() -> dict[str, float]:
    """Measure the instructions of each loop over the hand-written one.

    Raises:
        RuntimeError: a loop has failed.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    program = "from benchmarks.guard import count; count()"
    done, counts = callgrind.count([sys.executable, "-c", program], environment, ROOT)
    if done.returncode or counts.keys() != {"hand-written", *LIMITS}:
        raise RuntimeError(done.stderr)
    return {name: counts[name] / counts["hand-written"] for name in LIMITS}


def main() -> int:
    if not callgrind.is_available():
        print("Not run: valgrind on x86-64 is needed.")
        return 0
    measured = ratios()
    for name, ratio in measured.items():
        print(
            f"{name}: {ratio:.4f} times the instructions of a hand-written loop; the limit is"
            f" {LIMITS[name]:g}"
        )
    return int(any(ratio > LIMITS[name] for name, ratio in measured.items()))


if __name__ == "__main__":
    sys.exit(main())
