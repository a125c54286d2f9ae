"""`sys.exit()` in the user's code is a failure: a command that ends with 0 has trained to its last
step."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path
from shlex import split

import pytest

from launcher.rundir.record_format import read_record
from support import python
from support.runner import ENVIRONMENT, launch, record
from support.waiting import wait_for

RUN = split(
    "model=mlp data=digits trainer.max_steps=1 hooks=[checkpointing]"
    " hooks.checkpointing.best_metric=null"
)
EXITS = [
    *((place, 0) for place in split("constructor on_ready forward on_after_step on_close")),
    ("on_after_step", "null"),
]


def test_a_sweep_reports_every_exit(tmp_path):
    hooks = (
        f"{{_target_:support.saboteur.Exits,where:{where},code:{code}}}" for where, code in EXITS
    )
    done = launch(tmp_path, "-m", *RUN, f"+hooks.exits={','.join(hooks)}", code=1)
    assert "6 of 6 jobs failed:" in done.output, done.output
    states = [read_record(path)["state"] for path in tmp_path.glob("*/*/run.json")]
    assert states == ["failed"] * len(EXITS)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exit_while_a_sample_is_loaded(tmp_path, workers):
    data = (
        "data=custom",
        "data.dataset._target_=support.saboteur.ExitingSamples",
        f"data.num_workers={workers}",
    )
    sizes = ("model.num_features=64", "model.num_classes=10", "data.batch_size=8")
    done = launch(tmp_path, *RUN, *data, *sizes, code=1)
    assert "called sys.exit(0); raise an exception instead" in done.output
    assert "saboteur.py" in done.output, "where it was called"
    assert record(tmp_path)["attempts"][-1]["exit_code"] == 1


POOL = """
import os, signal
import torch._inductor.async_compile as inductor
from torch._inductor import config
from launcher.process import signals, user_exits
signals.install()
config.compile_threads = 2
pool = inductor.AsyncCompile.process_pool()
assert pool.submit(len, [1, 2]).result() == 2
print(pool.process.pid, flush=True)
os.kill(pool.process.pid, signal.SIGSTOP)
user_exits.begin_exit()
"""


def test_compile_workers_end_without_being_waited_for():
    done = python.run("-c", POOL, check=True)
    assert done.stderr == ""
    os.kill(int(done.stdout), signal.SIGCONT)
    worker = Path("/proc") / done.stdout.strip()
    wait_for(lambda: not worker.exists(), "the compile worker to end")


LACKS_TRITON = "triton is not installed, which each CUDA build of torch brings"


@pytest.mark.skipif(find_spec("triton") is None and "CI" not in os.environ, reason=LACKS_TRITON)
@pytest.mark.parametrize("command", ["completes", "fails"])
def test_the_end_of_a_command_is_silent(tmp_path, command):
    """Triton's extension module reports each object that Python has not freed.

    Only an interpreter that ends by itself shows it.
    """
    program = "import triton._C.libtriton; from launcher.__main__ import main; main()"
    failing = ["+hooks.exits={_target_:support.saboteur.Exits,where:on_ready,code:0}"]
    words = [*RUN, *(failing if command == "fails" else [])]
    done = python.run(
        *("-c", program, *words, f"paths.outputs={tmp_path}"), env=ENVIRONMENT, real=True
    )
    if command == "completes":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 1
        assert done.stderr.endswith("called sys.exit(0); raise an exception instead\n"), done.stderr
