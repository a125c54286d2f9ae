"""Several ranks as a user starts them: signals to any of them, failures of any of them, and what is
left behind."""

import json
import os
import re
import signal
from pathlib import Path
from shlex import split

import pytest

from launcher.checkpoint.manifest import verify
from support import python
from support.processes import Command
from support.runner import ENVIRONMENT, final_state, launch, metrics, record, run_folder, stop_at
from support.waiting import wait_for

TINY = split(
    "data=synthetic data.seq_len=16 data.num_val_samples=0 model.dim=16 model.num_layers=1"
    " model.num_heads=2 data.batch_size=8 device=cpu hooks.checkpointing.best_metric=null"
    " hooks.progress.interval=2"
)
LONG = (*TINY, "trainer.max_steps=100000")
DDP = ("dispatch.nproc=2", "strategy=ddp")  # the quicker to start
SABOTEUR = "+tracker.saboteur={{_target_:support.saboteur.Saboteur,rank:{},step:{},act:{}}}"


def steps_saved(outputs: Path) -> list[str]:
    """The last step that each rank's log says it saved."""
    logs = [run_folder(outputs) / "logs" / f"{name}.log" for name in ("launcher", "rank-1")]
    return [re.findall(r"Step (\d+): checkpoint saved", log.read_text())[-1] for log in logs]


def test_rank_0_leaves_when_all_have_read_its_last_decision(tmp_path):
    launch(tmp_path, *TINY, *DDP, "job._target_=support.saboteur.Late", code=0)


@pytest.mark.parametrize("whom", ["the command", "the group"])
def test_a_signal_to_any_saves_the_same_step_on_all(tmp_path, whom):
    with Command(f"paths.outputs={tmp_path}", *LONG, *DDP, "data.num_workers=2") as command:
        command.read_until("Step ")
        if whom == "the command":
            second = launch(tmp_path, *LONG, *DDP)
            (line,) = second.output.splitlines()
            assert second.returncode == 2 and "is on this run" in line
        send = os.killpg if whom == "the group" else os.kill
        send(command.pid, signal.SIGTERM)
        assert command.wait() == 128 + signal.SIGTERM, command.output
        assert command.left() == []
    first, second = steps_saved(tmp_path)
    now = record(tmp_path)
    assert first == second == str(now["step"])
    assert (now["state"], now["world_size"]) == ("preempted", 2)
    assert now["attempts"][0]["signal"] == "SIGTERM"
    manifest = json.loads((run_folder(tmp_path) / "checkpoints/latest/manifest.json").read_text())
    assert {"rank-00000.json", "rank-00001.json"} <= {entry["name"] for entry in manifest["files"]}


def test_a_signal_to_one_rank_in_the_middle_of_a_step(tmp_path):
    launch(tmp_path, *LONG, *DDP, *stop_at(4, "optimizer", group=False, rank=1), code=143)
    # Next to the optimizer the ranks have begun to agree: it counts at the next step.
    assert record(tmp_path)["step"] == 5
    checkpoint = (run_folder(tmp_path) / "checkpoints" / "latest").resolve()
    assert verify(checkpoint).world_size == 2 and checkpoint.name == "step-00000005"


NEW_INTERPRETERS = """
import importlib.abc, os, signal, sys, time

if "node" in sys.orig_argv:
    os._exit(1)
"""
"""A `sitecustomize` with which nothing is forked: the process that would do it ends."""
SLOW_IMPORT = f"""{NEW_INTERPRETERS}

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch" and os.environ.get("RANK") == "1":
            assert "libtorch" not in open(f"/proc/{{os.getppid()}}/maps").read()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)


sys.meta_path.insert(0, Finder())
"""


SLOW_MODULE = """
import os, signal, time
from launcher.models.gpt import GPT

if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(2)
"""
STARTS = {
    # The rank's imports take longer than the grace, as on a busy machine. The command has no torch.
    "new": ("sitecustomize.py", SLOW_IMPORT, "dispatch.grace=2"),
    "forked": ("slow_module.py", SLOW_MODULE, "model._target_=slow_module.GPT"),
}


@pytest.mark.parametrize("kind", STARTS)
def test_a_signal_to_one_rank_while_it_starts_slowly(tmp_path, monkeypatch, kind):
    """The other rank learns of the signal."""
    name, text, override = STARTS[kind]
    (tmp_path / name).write_text(text)
    path = f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", path)
    words = (f"paths.outputs={tmp_path / 'outputs'}", *LONG, *DDP, override)
    with Command(*words, real=kind == "new") as command:
        assert command.wait() == 128 + signal.SIGTERM, command.output
        assert command.left() == [] and "forced exit" not in command.output
    assert "Training from" not in command.output, "nothing had begun"


def test_an_interruption_leaves_no_trace(tmp_path):
    overrides = (*TINY, "dispatch.nproc=2", "model.dropout=0.1", "trainer.max_steps=8")
    overrides += ("hooks.logging.interval=3", "data.num_val_samples=11")
    stop = stop_at(4, "optimizer", group=False)
    for name, more, code in [("whole", [], 0), ("parts", stop, 143), ("parts", [], 0)]:
        launch(tmp_path / name, *overrides, *more, code=code)
    assert record(tmp_path / "parts")["strategy"] == "fsdp", "what auto is on two ranks"
    assert final_state(tmp_path / "parts") == final_state(tmp_path / "whole")
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    for file in ("shard-00001.safetensors", "rank-00001.safetensors"):
        ends = [run_folder(tmp_path / name) / "checkpoints/latest" for name in ("parts", "whole")]
        assert (ends[0] / file).read_bytes() == (ends[1] / file).read_bytes()
    for job in ("evaluate", "export"):
        launch(tmp_path / "whole", *overrides, f"job={job}", code=0)
    line = json.loads((run_folder(tmp_path / "whole") / "evaluations.jsonl").read_text())
    assert line["val/loss"] == pytest.approx(metrics(tmp_path / "whole")[-1]["val/loss"], rel=1e-6)
    assert (run_folder(tmp_path / "whole") / "export" / "model.safetensors").exists()


@pytest.fixture
def new_interpreters(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(NEW_INTERPRETERS)
    path = f"{folder}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", path)


def test_forked_ranks_compute_what_new_interpreters_compute(tmp_path, request):
    words = (*TINY, *DDP, "trainer.max_steps=6", "model.dropout=0.1", "hooks.logging.interval=2")
    launch(tmp_path / "forked", *words, code=0)
    request.getfixturevalue("new_interpreters")
    launch(tmp_path / "new", *words, code=0, real=True)
    forked, new = tmp_path / "forked", tmp_path / "new"
    assert final_state(forked) == final_state(new)
    assert metrics(forked) == metrics(new)
    files = [run_folder(each) / "checkpoints/latest/machine.yaml" for each in (forked, new)]
    assert files[0].read_text() == files[1].read_text()


@pytest.mark.parametrize("kind", ["forked", "new"])
def test_ranks_do_not_outlive_a_command_that_is_killed(tmp_path, request, kind):
    if kind == "new":
        request.getfixturevalue("new_interpreters")
    with Command(f"paths.outputs={tmp_path}", *LONG, *DDP, real=kind == "new") as command:
        command.read_until("Step ")
        os.kill(command.pid, signal.SIGKILL)
        wait_for(lambda: command.left() == [])
    assert record(tmp_path)["state"] == "preempted", "they saved"


@pytest.mark.parametrize(
    ("rank", "act", "reason"),
    [
        (1, "raise", "LookupError: lost in the middle"),
        (0, "exit", "RuntimeError: the code of the run called sys.exit(0)"),
        (1, "_exit", "ended with exit code 0 and reported no error"),
        (0, "killed", "was killed by signal 9"),
        (1, "killed", "was killed by signal 9"),
    ],
)
def test_a_failing_rank_ends_all(tmp_path, rank, act, reason):
    sabotage = SABOTEUR.format(rank, 3, act)
    words = (f"paths.outputs={tmp_path}", *LONG, *DDP, "data.num_workers=1", sabotage)
    with Command(*words) as command:
        assert command.wait() == 1, command.output
        wait_for(lambda: command.left() == [])
    end = command.output[command.output.index(f"Rank {rank} of 2 failed:") :]
    assert reason in end.splitlines()[-1]
    assert ("Traceback" in end) == (act in ("raise", "exit"))
    now = record(tmp_path)
    assert now["state"] == now["attempts"][0]["outcome"] == "failed"
    log = run_folder(tmp_path) / "logs" / f"rank-{rank}.log"
    who = f"rank {rank}: " if act in ("raise", "exit") else f"rank {rank}: it "
    assert now["attempts"][0]["reason"].startswith(who + reason)
    assert "a word of native code" in (log.read_text() if rank else command.output)
    if (rank, act) == (1, "raise"):
        assert "a word of native code" not in command.output, "only rank 0 has the screen"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_hang_after_a_signal_ends_by_force(tmp_path, ranks):
    """One process sleeps in a step; of two ranks one is stopped, and the other waits for it in a
    collective."""
    asleep = SABOTEUR.format(0, 30, "sleep")
    how = (*DDP, "dispatch.grace=3") if ranks == 2 else ("dispatch.grace=3", asleep)
    saved = "hooks.checkpointing.interval=10", "hooks.checkpointing.keep_previous=0"
    with Command(f"paths.outputs={tmp_path}", *LONG, *how, *saved, "data.num_workers=1") as command:
        command.read_until("Step     30/" if ranks == 2 else "a word of native code")
        if ranks == 2:
            os.kill(command.ranks()[1], signal.SIGSTOP)
        os.kill(command.pid, signal.SIGTERM)
        assert command.wait() == 1, command.output
        wait_for(lambda: command.left() == [])
    said = "No progress for 3 s after SIGTERM: forced exit. The last checkpoint is valid."
    assert said == command.output.splitlines()[-1]
    assert "trainer.py" in command.output, "it says where it was"
    (attempt,) = record(tmp_path)["attempts"]
    assert (attempt["outcome"], attempt["signal"]) == ("failed", "SIGTERM")
    assert attempt["reason"].removeprefix("its last step is saved. ") == said
    verify((run_folder(tmp_path) / "checkpoints" / "latest").resolve())


def test_no_loss_on_one_rank_of_fsdp_is_an_error_and_no_hang(tmp_path):
    silent = ("strategy=fsdp", "dispatch.nproc=2", "model._target_=support.saboteur.Silent")
    done = launch(tmp_path, *LONG, *silent, code=1)
    assert "forward returned no loss on rank 1" in done.output.splitlines()[-1]


def test_error_of_all_ranks_is_printed_once(tmp_path):
    of_one = "strategy._target_=support.saboteur.OneProcess"
    rejected = launch(tmp_path / "none", *LONG, "strategy=none", of_one, "dispatch.nproc=2")
    (line,) = rejected.output.splitlines()
    assert rejected.returncode == 2 and line.startswith("strategy=none: uses one rank")
    assert not (tmp_path / "none").exists()


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "launcher")


@pytest.fixture
def forked_by_torchrun(tmp_path_factory, monkeypatch):
    """Its ranks are processes that have imported torch."""
    interpreter = python.command(tmp_path_factory.mktemp("bin"))
    monkeypatch.setitem(ENVIRONMENT, "PYTHON_EXEC", str(interpreter))


@pytest.mark.usefixtures("forked_by_torchrun")
def test_a_signal_to_torchrun_saves_the_same_step_on_all(tmp_path):
    with Command(f"paths.outputs={tmp_path}", *LONG, "strategy=ddp", start=TORCHRUN) as command:
        command.read_until("Step ")
        os.kill(command.pid, signal.SIGTERM)
        assert command.wait() == 1, "its own exit code for a signal"
        wait_for(lambda: command.left() == [])
    first, second = steps_saved(tmp_path)
    assert first == second == str(record(tmp_path)["step"])
    assert record(tmp_path)["state"] == "preempted"


@pytest.mark.usefixtures("forked_by_torchrun")
def test_launcher_joins_the_ranks_that_torchrun_started(tmp_path):
    words = (f"paths.outputs={tmp_path}", *TINY, "strategy=ddp", "trainer.max_steps=4")
    with Command(*words, start=TORCHRUN) as command:
        assert command.wait() == 0, command.output
    now = record(tmp_path)
    assert (now["state"], now["world_size"], len(now["attempts"])) == ("completed", 2, 1)
    assert command.output.count("Completed at step 4") == 1
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=120" in command.output
