"""The end of a process that has compiled a model on a GPU."""

import subprocess
import sys
import time
from pathlib import Path

POOL = """
import torch._inductor.async_compile as inductor
from launcher.process import signals, user_exits
signals.install()
pool = inductor.AsyncCompile.process_pool()
assert pool.submit(len, [1, 2]).result() == 2
print(pool.process.pid, flush=True)
user_exits.begin_exit()
"""


def test_compile_workers_end_without_being_waited_for() -> None:
    environment = {"PATH": "/usr/bin:/bin", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", POOL], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    worker = Path("/proc") / done.stdout.strip()
    until = time.monotonic() + 60
    while worker.exists():
        assert time.monotonic() < until, "a compile worker is left"
        time.sleep(0.1)
