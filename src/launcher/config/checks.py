"""Rules across several keys, and about files and folders. The parts that obey a rule call the same function."""

import os
import re
import signal
from collections.abc import Iterator
from glob import iglob
from pathlib import Path
from typing import Any

from launcher.config import deepspeed_file
from launcher.config.messages import Fault, hint, show
from launcher.config.tree import get
from launcher.run.folder import checkpoint_of, checkpoint_steps

NO_TRAINING = ("launcher.jobs.evaluate.EvaluateJob", "launcher.jobs.export.ExportJob")
"""Jobs that use the model (and the data) of a run, and do not train."""
RESUME = ("auto", "never", "must", "best")
STEP = re.compile(r"(step-)?\d+")
NAME = re.compile(r"\w[\w.+=@-]{0,127}")


def crosschecks(tree: dict[str, Any]) -> Iterator[Fault]:
    """The faults of a resolved configuration. Values of a wrong type are reported by the schema."""
    job = get(tree, "job._target_")
    if job not in NO_TRAINING:
        yield from _batch(tree)
        yield from _warmup(tree)
        yield from _pause(tree)
    if job != "launcher.jobs.export.ExportJob":
        yield from _files(tree)
    yield from _names(tree)
    yield from _start(tree)
    yield from _outputs(tree)
    yield from _signals(tree)
    yield from deepspeed_file.crosschecks(tree)


def _count(tree: dict[str, Any], path: str) -> int | None:
    value = get(tree, path)
    return value if type(value) is int and value > 0 else None


def batch_fault(size: int, micro: int | None, world_size: int, source: str | None = None) -> Fault | None:
    """The samples of a step must divide evenly over ranks and micro-batches.

    Args:
        micro: samples per rank and forward; None: whatever fits.
        source: where the number of ranks is from.
    """
    unit = (micro or 1) * world_size
    if size % unit == 0:
        return None
    factors = [f"trainer.micro_batch_size={micro}"] if micro else []
    if world_size > 1 or source:
        factors.append(f"{world_size} rank{'s' if world_size > 1 else ''}{f' ({source})' if source else ''}")
    product = " x ".join(factors) + (f" = {unit}" if len(factors) > 1 else "")
    sizes = [str(multiple) for multiple in (size // unit * unit, (size // unit + 1) * unit) if multiple]
    return Fault("data.batch_size", str(size), f"is not divisible by {product}; use {' or '.join(sizes)}.")


def _batch(tree: dict[str, Any]) -> Iterator[Fault]:
    """`nproc=auto` counts as one rank: a batch that fails here fails for any number of ranks."""
    size, nproc, nodes = _count(tree, "data.batch_size"), _count(tree, "dispatch.nproc"), _count(tree, "dispatch.nodes")
    tasks = _count(tree, "dispatch.tasks_per_node") or _count(tree, "dispatch.gpus_per_node")
    world_size = (nproc or tasks or 1) * (nodes or 1)
    source = f"dispatch.nproc={nproc}" if nproc else f"{tasks or 1} per node" if world_size > 1 else None
    if source and nodes and nodes > 1:
        source += f" x {nodes} nodes"
    if size and (fault := batch_fault(size, _count(tree, "trainer.micro_batch_size"), world_size, source)):
        yield fault


def warmup_fault(steps: int | None, ratio: float | None, total: int | None) -> Fault | None:
    """At most one of the two may be set, and the warm-up must not be longer than the run."""
    if steps and ratio:
        text = (
            f"scheduler.warmup_ratio={show(ratio)} is set too, and only one may be; e.g. scheduler.warmup_ratio=null."
        )
        return Fault("scheduler.warmup_steps", show(steps), text)
    if steps and total and steps > total:
        return Fault("scheduler.warmup_steps", show(steps), f"the run has only {total} steps; use at most {total}.")
    return None


def _warmup(tree: dict[str, Any]) -> Iterator[Fault]:
    steps, ratio = get(tree, "scheduler.warmup_steps"), get(tree, "scheduler.warmup_ratio")
    total = _count(tree, "scheduler.max_steps") or _count(tree, "trainer.max_steps")
    if get(tree, "trainer.max_epochs") is not None:
        total = None  # it depends on the data
    if type(steps) is int and (fault := warmup_fault(steps, ratio, total)):
        yield fault


def _pause(tree: dict[str, Any]) -> Iterator[Fault]:
    pause_at = get(tree, "trainer.pause_at")
    if type(pause_at) is int and not get(tree, "hooks.checkpointing"):
        yield Fault("trainer.pause_at", show(pause_at), "a pause needs a checkpoint; keep hooks.checkpointing.")


def no_file(key: str, pattern: str) -> Fault:
    where = "" if Path(pattern).expanduser().is_absolute() else f" (looked in {Path.cwd()})"
    return Fault(key, show(pattern, 200), f"matches no file{where}.")


def _files(tree: dict[str, Any]) -> Iterator[Fault]:
    """`data.files`, and keys like `data.val_files`."""
    data = get(tree, "data")
    for key, value in data.items() if isinstance(data, dict) else ():
        if key == "files" or key.endswith("_files"):
            for pattern in value if isinstance(value, list) else [value]:
                if isinstance(pattern, str) and not _matches(Path(pattern).expanduser()):
                    yield no_file(f"data.{key}", pattern)


def _matches(path: Path) -> bool:
    return path.exists() or any(True for _ in iglob(str(path), recursive=True))


def _names(tree: dict[str, Any]) -> Iterator[Fault]:
    for key in ("run.name", "run.id", "run.tag", "hpo.name"):
        value = get(tree, key)
        if isinstance(value, str) and not NAME.fullmatch(value):
            text = "should be a valid folder name: letters, digits and . _ - + = @, starting with a letter, digit or _."
            yield Fault(key, show(value), text)


def _start(tree: dict[str, Any]) -> Iterator[Fault]:
    resume, init_from = get(tree, "run.resume"), get(tree, "run.init_from")
    is_step = isinstance(resume, str) and STEP.fullmatch(resume.rstrip("/").rpartition("/")[2])  # retention deletes it
    if isinstance(resume, str) and not is_step and resume not in RESUME and not Path(resume).expanduser().exists():
        ways = "auto, never, must, best, a step or the folder of a checkpoint"
        text = f"should be {ways}{hint(resume, RESUME, 'run.resume={}')}"
        yield Fault("run.resume", show(resume, 200), text)
    yield from _fork(tree)
    if isinstance(init_from, str) and not Path(init_from).expanduser().exists():
        outputs = Path(str(get(tree, "paths.outputs"))).expanduser()
        if "/" in init_from or not any(outputs.glob(f"*/{init_from}")):
            yield Fault(
                "run.init_from", show(init_from, 200), "there is no such file or folder, and no run of this id."
            )


def _fork(tree: dict[str, Any]) -> Iterator[Fault]:
    """The checkpoint that a fork starts from. One that has checkpoints of its own needs it no longer."""
    source, without = get(tree, "run.fork_from"), get(tree, "run.fork_without")
    if without and source is None:
        yield Fault("run.fork_without", show(without), "is for a fork; set run.fork_from too.")
    if not isinstance(source, str) or checkpoint_steps(Path(str(get(tree, "run.dir"))).expanduser() / "checkpoints"):
        return
    if get(tree, "run.init_from") is not None:
        yield Fault("run.fork_from", show(source, 200), "run.init_from is set too; a run starts from one of them.")
    if checkpoint_of(Path(str(get(tree, "paths.outputs"))).expanduser(), source) is None:
        text = "there is no such checkpoint; give <run id>/<step>, or the folder of a checkpoint."
        yield Fault("run.fork_from", show(source, 200), text)


def _outputs(tree: dict[str, Any]) -> Iterator[Fault]:
    """The output folder must exist, or it must be possible to create it."""
    value = get(tree, "paths.outputs")
    if not isinstance(value, str):
        return
    path = Path(value).expanduser().absolute()
    existing = next((folder for folder in (path, *path.parents) if os.path.lexists(folder)), path)
    if not existing.is_dir():
        yield Fault("paths.outputs", show(value, 200), f"{existing} is not a folder; use another folder.")
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield Fault("paths.outputs", show(value, 200), f"{existing} is not writable; use another folder.")


def parse_signal(value: str | int) -> signal.Signals | None:
    """A signal by name (`SIGUSR1`, `USR1`) or number; None if there is no such signal."""
    try:
        if isinstance(value, str):
            return signal.Signals["SIG" + value.upper().removeprefix("SIG")]
        return signal.Signals(value)
    except (KeyError, ValueError):
        return None


def signal_fault(key: str, value: str | int) -> Fault | None:
    number = parse_signal(value)
    if number is None:
        return Fault(key, show(value), f"there is no such signal; e.g. {key}=[SIGUSR1].")
    if number in (signal.SIGKILL, signal.SIGSTOP):
        return Fault(key, show(value), f"a process cannot handle this signal; e.g. {key}=[SIGUSR1].")
    return None


def _signals(tree: dict[str, Any]) -> Iterator[Fault]:
    """`exit_signals` of any hook."""
    hooks = get(tree, "hooks")
    for name in hooks if isinstance(hooks, dict) else ():
        key = f"hooks.{name}.exit_signals"
        value = get(tree, key)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str | int) and (fault := signal_fault(key, each)):
                yield fault
