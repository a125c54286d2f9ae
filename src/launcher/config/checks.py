"""What several keys of a configuration must agree on, and what must be there on disk."""

import re
from collections.abc import Iterator
from glob import iglob
from pathlib import Path
from typing import Any

from launcher.config.messages import hint, show

NO_TRAINING = ("launcher.jobs.evaluate.EvaluateJob", "launcher.jobs.export.ExportJob")
"""Jobs that use the model (and the data) of a run and train nothing."""
RESUME = ("auto", "never", "must")
NAME = re.compile(r"\w[\w.+=@-]{0,127}")


def crosschecks(tree: dict[str, Any]) -> Iterator[str]:
    """A sentence for each fault of a resolved configuration. Values of a wrong type are left to others."""
    job = _at(tree, "job._target_")
    if job not in NO_TRAINING:
        yield from _batch(tree)
        yield from _warmup(tree)
    if job != "launcher.jobs.export.ExportJob":
        yield from _files(tree)
    yield from _names(tree)
    yield from _start(tree)


def _at(tree: dict[str, Any], path: str) -> Any:
    value: Any = tree
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _count(tree: dict[str, Any], path: str) -> int | None:
    value = _at(tree, path)
    return value if type(value) is int and value > 0 else None


def _batch(tree: dict[str, Any]) -> Iterator[str]:
    """The samples of a step must divide evenly over ranks and micro-batches. `dispatch.nproc=auto` counts as one rank
    here: what does not divide then divides by no number of them."""
    size, micro = _count(tree, "data.batch_size"), _count(tree, "trainer.micro_batch_size")
    nproc, nodes = _count(tree, "dispatch.nproc"), _count(tree, "dispatch.nodes") or 1
    tasks = _count(tree, "dispatch.tasks_per_node") or _count(tree, "dispatch.gpus_per_node")
    world = (nproc or tasks or 1) * nodes
    unit = (micro or 1) * world
    if size is None or size % unit == 0:
        return
    factors = [f"trainer.micro_batch_size={micro}"] if micro else []
    if nproc is not None or world > 1:
        source = f"dispatch.nproc={nproc}" if nproc is not None else f"{tasks or 1} to a node"
        machines = f" x {nodes} nodes" if nodes > 1 else ""
        factors.append(f"{world} rank{'s' if world > 1 else ''} ({source}{machines})")
    parts = " x ".join(factors) + (f" = {unit}" if len(factors) > 1 else "")
    ways = [str(way) for way in (size // unit * unit, (size // unit + 1) * unit) if way]
    yield f"data.batch_size={size}: does not divide by {parts}; take {' or '.join(ways)}."


def _warmup(tree: dict[str, Any]) -> Iterator[str]:
    steps, ratio = _at(tree, "scheduler.warmup_steps"), _at(tree, "scheduler.warmup_ratio")
    total = _count(tree, "scheduler.max_steps") or _count(tree, "trainer.max_steps")
    if steps and ratio:
        yield (
            f"scheduler.warmup_steps={show(steps)}: scheduler.warmup_ratio={show(ratio)} is set too, "
            "and only one may be; e.g. scheduler.warmup_ratio=null."
        )
    if type(steps) is int and total is not None and steps > total:
        yield f"scheduler.warmup_steps={steps}: is more than the steps there are; take {total} or less."


def _files(tree: dict[str, Any]) -> Iterator[str]:
    """`data.files` and its kin (`data.val_files`): each pattern must match something."""
    data = _at(tree, "data")
    for key, value in data.items() if isinstance(data, dict) else ():
        if key != "files" and not key.endswith("_files"):
            continue
        for pattern in value if isinstance(value, list) else [value]:
            if isinstance(pattern, str) and not _matches(pattern):
                where = "" if Path(pattern).expanduser().is_absolute() else f" (looked in {Path.cwd()})"
                yield f"data.{key}={show(pattern, 200)}: matches no file{where}."


def _matches(pattern: str) -> bool:
    path = str(Path(pattern).expanduser())
    return Path(path).exists() or any(True for _ in iglob(path, recursive=True))


def _names(tree: dict[str, Any]) -> Iterator[str]:
    for key in ("name", "id", "tag"):
        value = _at(tree, f"run.{key}")
        if isinstance(value, str) and not NAME.fullmatch(value):
            yield (
                f"run.{key}={show(value)}: should be usable as a folder's name: letters, digits and "
                ". _ - + = @ with a letter, digit or _ first."
            )


def _start(tree: dict[str, Any]) -> Iterator[str]:
    resume, init_from = _at(tree, "run.resume"), _at(tree, "run.init_from")
    if isinstance(resume, str) and resume not in RESUME and not Path(resume).expanduser().exists():
        yield (
            f"run.resume={show(resume, 200)}: should be auto, never, must or the folder of a checkpoint"
            f"{hint(resume, RESUME, 'run.resume={}')}"
        )
    if isinstance(init_from, str) and not Path(init_from).expanduser().exists():
        outputs = Path(str(_at(tree, "paths.outputs"))).expanduser()
        if "/" in init_from or not any(outputs.glob(f"*/{init_from}")):
            yield f"run.init_from={show(init_from, 200)}: there is no such file or folder, and no run of this id."
