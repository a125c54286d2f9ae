"""Rules across several keys, and about files and folders.

A rule gets the values of the keys that it reads, and reports no value of a wrong type, which the
schema does. The code that depends on a rule calls the same function.
"""

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from glob import iglob
from math import lcm
from pathlib import Path
from typing import Any, TypeGuard

from launcher.config.messages import ConfigIssue, show
from launcher.config.omegaconf_nodes import settings_of
from launcher.config.schema.declared import (
    DEFAULT_READS,
    declared,
    parts,
    provided_by,
    providing,
    setting,
)
from launcher.config.schema.deepspeed_file import deepspeed_issues
from launcher.config.schema.hook_dependencies import metric_issues, need_issues
from launcher.config.schema.lane_rules import (
    describe_ranks,
    lane_issues,
    multiples,
    support_issue,
)
from launcher.config.schema.matters_from import is_ours
from launcher.config.schema.metric_direction import direction
from launcher.config.schema.node_range import RankRange
from launcher.config.schema.own_optimizers import ALLOWED, own_optimizer_issues
from launcher.config.schema.signature import signature_of
from launcher.config.settings import TrainerSettings
from launcher.config.tree import Node, as_list, get, items
from launcher.process.files import expand
from launcher.process.plural import plural
from launcher.process.users import ask_owner, other_owner
from launcher.rundir.folder import checkpoint_of, checkpoint_steps, weights_source
from launcher.types import PositiveInt

Rules = dict[Callable[..., Iterator[ConfigIssue]], tuple[str, ...]]
CHECKPOINTING = "checkpointing"
"""The hook that saves and resumes, as its class has it in `provides`."""
NAME = re.compile(r"\w[\w.+=@-]*")
MAX_NAME_BYTES = 128
NEW_DATA = "predict"
"""The key of `data` with the data of job=predict."""
STEP_PAIRS = list[list[PositiveInt]] | None
"""The type of `data.skip`, see `launcher.data.base.LoaderSettings`."""
PICKLES = {".pt", ".pth", ".ckpt", ".bin", ".pkl"}
PICKLES_OF_FOLDERS = ("pytorch_model.bin", "pytorch_model.pt", "model.pt")


def _check_objective(metric: object, value: object, hooks: object) -> Iterator[ConfigIssue]:
    """Check that the better of two values of `job.objective` is known."""
    followed = get(checkpointing(hooks), "best_metric")
    if not isinstance(metric, str) or value == "last" or metric == followed:
        return
    if direction(metric) is None:
        yield ConfigIssue(
            "job.objective",
            show(metric),
            "the name does not show whether less or more is better; use job.value=last, or set"
            f" hooks.checkpointing.best_metric={metric} and hooks.checkpointing.best_mode.",
        )


def _check_test_set(data: object, hooks: object) -> Iterator[ConfigIssue]:
    """Check that the data have a test set, as far as their settings show it."""
    settings = dict(items(data))
    # A data source of the user's own may make one without a key.
    has_none = "test_dataset" in settings or is_ours(settings.get("_target_"))
    if not has_none or settings.get("test_dataset") is not None:
        return
    for path, hook in parts("hooks", hooks).items():
        if "evaluation" in provided_by(hook) and hook.get("test") is not None:
            text = "the data have no test set; set data.test_dataset, or leave it out."
            yield _issue(f"{path}.test", hook["test"], text)


def _issue(key: str, value: object, text: str) -> ConfigIssue:
    """Return an issue of a key with its value, a text without quotes."""
    return ConfigIssue(key, show(value, 200).strip("'"), text)


def batch_issue(size: int, world_size: int, source: str | None = None) -> ConfigIssue | None:
    """Check that the samples of a step divide evenly over the ranks."""
    if size % world_size == 0:
        return None
    ranks = describe_ranks(world_size, source)
    text = f"is not divisible by {ranks}; use {multiples(size, world_size)}."
    return ConfigIssue("data.batch_size", str(size), text)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _check_batch(size: object, lanes: object, dispatch: Any) -> Iterator[ConfigIssue]:
    """Check that the samples of a step divide evenly over any number of ranks."""
    if lanes is not None or not _is_count(size):
        return
    ranks = RankRange.of(dispatch)
    if ranks.nodes.is_open:
        yield from _check_nodes(size, ranks)
    elif issue := batch_issue(size, ranks.fewest, ranks.source):
        yield issue


def _check_nodes(size: int, ranks: RankRange) -> Iterator[ConfigIssue]:
    """Check that each number of nodes that a job may get divides the batch."""
    nodes, tasks = ranks.nodes, ranks.per_node
    bad = next((count for count in nodes.counts if size % (count * tasks)), None)
    if bad is None:
        return
    text = (
        f"data.batch_size={size} is not divisible by {bad * tasks} ranks ({bad} nodes, {tasks} per"
        " node); use a smaller range"
    )
    # With more numbers, no batch has the size of their least common multiple.
    if len(nodes.counts) <= 8:
        unit = lcm(*(count * tasks for count in nodes.counts))
        text += f" or data.batch_size={multiples(size, unit)}"
    yield ConfigIssue("dispatch.nodes", str(nodes), f"{text}.")


def _check_one_process(strategy: object, model: object, dispatch: Any) -> Iterator[ConfigIssue]:
    """Check that a strategy of one process gets one rank."""
    ranks = RankRange.of(dispatch)
    has_one = declared(strategy, "one_process") or declared(model, "owns_optimizers")
    if has_one and ranks.fewest * ranks.nodes.max > ranks.nodes.min:
        text = f"uses one rank, and gets more ({ranks.source}); use one."
        yield ConfigIssue("strategy", declared(strategy, "name"), text)


def _check_lanes(
    trainer: object, size: object, strategy: object, dispatch: Any
) -> Iterator[ConfigIssue]:
    """Check that the smallest number of nodes divides `trainer.lanes`."""
    settings = settings_of(TrainerSettings, {"max_steps": None, **dict(items(trainer))})
    if not _is_count(settings.lanes):
        return
    ranks = RankRange.of(dispatch)
    batch_size = size if _is_count(size) else None
    yield from lane_issues(settings, batch_size, ranks.fewest, ranks.source)
    if declared(strategy, "is_deepspeed"):
        yield support_issue(settings.lanes, "deepspeed")


def warmup_issue(steps: int | None, ratio: float | None, total: int | None) -> ConfigIssue | None:
    """Check that at most one of the two settings is set, and the warm-up fits the run."""
    if not steps:
        return None
    if ratio:
        text = (
            f"scheduler.warmup_ratio={show(ratio)} is set too, and only one may be; e.g."
            " scheduler.warmup_ratio=null."
        )
        return ConfigIssue("scheduler.warmup_steps", show(steps), text)
    if total and steps > total:
        return ConfigIssue(
            "scheduler.warmup_steps",
            show(steps),
            f"the run has only {plural(total, 'step')}; use at most {total}.",
        )
    return None


def _check_warmup(
    steps: object, ratio: Any, length: object, max_steps: object, max_epochs: object
) -> Iterator[ConfigIssue]:
    """Check the warm-up of a schedule whose length is its own, or the length of the run."""
    # The number of steps in epochs depends on the data.
    totals = [total for total in (length, max_steps) if _is_count(total) and max_epochs is None]
    if type(steps) is int and (issue := warmup_issue(steps, ratio, next(iter(totals), None))):
        yield issue


def _check_without_checkpoints(
    hooks: object, pause_at: object, resume: object, fork_from: object
) -> Iterator[ConfigIssue]:
    """Reject settings that need hooks.checkpointing, which saves and resumes."""
    if checkpointing(hooks) is not None:
        return
    text = "needs hooks.checkpointing, which saves and resumes; keep it."
    if type(pause_at) is int:
        yield _issue("trainer.pause_at", pause_at, text)
    if resume == "must":
        yield _issue("run.resume", resume, text)
    if fork_from is not None:
        yield _issue("run.fork_from", fork_from, text)


def checkpointing(hooks: object) -> Node | None:
    """Return the hook that saves and resumes, by what its class declares, else by its name."""
    return next(iter(providing(hooks, CHECKPOINTING)), get(hooks, CHECKPOINTING))


def _check_recomputation(backend: object, value: object) -> Iterator[ConfigIssue]:
    """Check activation checkpointing in a compiled model."""
    # AOT autograd lets a block that is recomputed repeat its dropout.
    repeats = not isinstance(backend, str) or backend.startswith(("aot_", "inductor", "cudagraphs"))
    if not repeats and value not in (None, "none"):
        key = "trainer.activation_checkpointing"
        text = (
            f"with {key}={value} a block that is recomputed draws other dropout masks than before,"
            f" so the gradient is wrong; use trainer.compile.backend=aot_eager, or {key}=none."
        )
        yield ConfigIssue("trainer.compile.backend", str(backend), text)


def no_file(key: str, pattern: str) -> ConfigIssue:
    where = "" if expand(pattern).is_absolute() else f" (looked in {Path.cwd()})"
    return ConfigIssue(key, show(pattern, 200), f"matches no file{where}.")


def _check_files(job: object, data: object) -> Iterator[ConfigIssue]:
    """Check the files of `data` that a job reads."""
    read = declared(job, "reads")
    if NEW_DATA in read and isinstance(data, dict) and data.get(NEW_DATA) is None:
        yield _no_new_data(data)
    for key, pattern in _patterns(data, read):
        if "://" not in pattern and not (pattern and _matches(expand(pattern))):
            yield no_file(key, pattern)


def _patterns(data: object, keys: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each path in a key of `data` that has one of these names, with the key."""
    for key, value in items(data):
        if any(fnmatchcase(str(key), name) for name in keys):
            listed = as_list(value)
            yield from ((f"data.{key}", each) for each in listed if isinstance(each, str))


def address_issues(data: object) -> Iterator[ConfigIssue]:
    """Report addresses in place of files; other messages about the data would mislead."""
    for key, pattern in _patterns(data, (*DEFAULT_READS, NEW_DATA)):
        if "://" in pattern:
            text = (
                "is an address, and files are read from a file system; copy the files, or"
                " mount their bucket, or read them in a dataset of your own (data=custom)."
            )
            yield ConfigIssue(key, show(pattern, 200), text)


def _no_new_data(data: Node) -> ConfigIssue:
    text = "job=predict needs new data; e.g. data.predict=new.jsonl."
    if NEW_DATA not in data:
        source = str(data.get("_target_")).rpartition(".")[2]
        text = (
            f"job=predict needs new data, which {source} does not read; use data=table, jsonl,"
            " parquet, text, tokens or custom."
        )
    return ConfigIssue("data.predict", None, text)


def _matches(path: Path) -> bool:
    return path.exists() or any(True for _ in iglob(str(path), recursive=True))


def _check_names(*names: object) -> Iterator[ConfigIssue]:
    """Check the names of folders: the values of the keys of `NAMES`."""
    for key, name in zip(NAMES, names, strict=True):
        if isinstance(name, str) and not (
            NAME.fullmatch(name) and len(name.encode()) <= MAX_NAME_BYTES
        ):
            text = (
                f"should be a valid folder name of at most {MAX_NAME_BYTES} bytes: letters, digits"
                " and . _ - + = @, starting with a letter, digit or _."
            )
            yield ConfigIssue(key, show(name), text)


def _check_start(
    folder: object, outputs: object, init_from: object, fork_from: object, fork_without: object
) -> Iterator[ConfigIssue]:
    """Check the checkpoint or the weights that a run starts from, until it has its own."""
    if fork_without and fork_from is None:
        yield _issue("run.fork_without", fork_without, "is for a fork; set run.fork_from too.")
    if checkpoint_steps(expand(str(folder)) / "checkpoints"):
        return
    if isinstance(fork_from, str):
        for text in _why_no_fork(fork_from, init_from, expand(str(outputs))):
            yield ConfigIssue("run.fork_from", show(fork_from, 200), text)
    if isinstance(init_from, str):
        source = weights_source(expand(str(outputs)), init_from)
        text = "there is no such file or folder, and no run of this id, or several."
        if source is None or (text := no_weights(source) or ""):
            yield ConfigIssue("run.init_from", show(init_from, 200), text)


def _why_no_fork(source: str, init_from: object, outputs: Path) -> Iterator[str]:
    if init_from is not None:
        yield "run.init_from is set too; a run starts from one of them."
    if checkpoint_of(outputs, source) is None:
        yield "there is no such checkpoint; give <run id>/<step>, or the folder of a checkpoint."


def no_weights(source: Path) -> str | None:
    """Return why a file, or a folder of pickles, has no readable weights, or None."""
    file = source
    if source.is_dir() and not any(source.glob("*.safetensors")):
        file = next(
            (source / name for name in PICKLES_OF_FOLDERS if (source / name).is_file()), source
        )
    if not file.is_file() or file.suffix == ".safetensors":
        return None
    if file.suffix not in PICKLES:
        return (
            "is not a .safetensors file, nor the folder of a checkpoint, a run or a Hugging Face"
            " model."
        )
    weights = f"torch.load({str(file)!r}, map_location='cpu', weights_only=True)"
    weights += "['state_dict']" if file.suffix == ".ckpt" else ""
    target = repr(f"{file.stem}.safetensors")
    return (
        "is a pickle, which is not read since it may run code. Convert it once, in Python:\n   "
        " import torch; from safetensors.torch import save_file\n    save_file({name:"
        f" t.contiguous().clone() for name, t in {weights}.items()}}, {target})"
    )


def _check_skip(data: Any) -> Iterator[ConfigIssue]:
    """Check that no data source has a key `skip` with a meaning of its own."""
    for path, node in {"data": data, **parts("data.sources", get(data, "sources"))}.items():
        spec = signature_of(get(node, "_target_"))
        # A dataset has no batch size, and any keys of its own.
        if not {"skip", "batch_size"} <= {*spec.names} or spec["skip"].annotation == STEP_PAIRS:
            continue
        text = (
            f"{spec.name} has a key of its own with the name of Launcher's key for steps to pass"
            " over; rename it, or declare it as list[list[PositiveInt]] | None."
        )
        yield ConfigIssue(f"{path}.skip", show(setting(node, "skip")), text)


def _check_folders(job: Any, data: Any, outputs: object) -> Iterator[ConfigIssue]:
    """Check that a folder that is written to exists, or can be created."""
    folders = {"paths.outputs": outputs}
    for group, node in (("job", job), ("data", data)):
        written = declared(get(node, "_target_"), "writes")
        folders |= {f"{group}.{key}": get(node, key) for key in written}
    for key, folder in folders.items():
        if isinstance(folder, str) and (text := _why_not_writable(folder)):
            yield ConfigIssue(key, show(folder, 200), text)


def _why_not_writable(folder: str) -> str | None:
    if str(expand(folder)).startswith("~"):
        return f"there is no user {folder[1:].partition('/')[0]}."
    path = expand(folder).absolute()
    existing = next((folder for folder in (path, *path.parents) if os.path.lexists(folder)), path)
    if not existing.is_dir():
        return f"{existing} is not a folder; use another folder."
    if not os.access(existing, os.W_OK | os.X_OK):
        owner = other_owner(existing)
        whose = "" if owner is None else f"belongs to {owner}, and "
        return f"{existing} {whose}is not writable; use another folder{ask_owner(existing)}."
    return None


def parse_signal(value: str | int) -> signal.Signals | None:
    """Parse a signal's name (`SIGUSR1`, `USR1`) or number; return None if it is neither."""
    try:
        if isinstance(value, str):
            return signal.Signals["SIG" + value.upper().removeprefix("SIG")]
        return signal.Signals(value)
    except (KeyError, ValueError):
        return None


def signal_issue(key: str, value: str | int) -> ConfigIssue | None:
    if parse_signal(value) not in (None, signal.SIGKILL, signal.SIGSTOP):
        return None
    text = f"is not a signal that a process can handle; e.g. {key}=[SIGUSR1]."
    return ConfigIssue(key, show(value), text)


def _check_signals(hooks: object) -> Iterator[ConfigIssue]:
    """Check `exit_signals` of any hook."""
    for name, node in items(hooks):
        key, value = f"hooks.{name}.exit_signals", get(node, "exit_signals")
        for item in as_list(value):
            if isinstance(item, str | int) and (issue := signal_issue(key, item)):
                yield issue


TARGETS = ("model._target_", "optimizer._target_", "strategy._target_")
NAMES = ("run.name", "run.id", "run.tag", "hpo.name")
FOLLOWING = ("hooks", "tracker", "scheduler")
RULES_OF_TRAINING: Rules = {
    _check_batch: ("data.batch_size", "trainer.lanes", "dispatch"),
    _check_lanes: ("trainer", "data.batch_size", "strategy._target_", "dispatch"),
    _check_warmup: (
        "scheduler.warmup_steps", "scheduler.warmup_ratio", "scheduler.max_steps",
        "trainer.max_steps", "trainer.max_epochs",
    ),
    _check_without_checkpoints: ("hooks", "trainer.pause_at", "run.resume", "run.fork_from"),
    need_issues: FOLLOWING,
    own_optimizer_issues: (
        *TARGETS, "data.batch_size", "trainer.micro_batch_size", *ALLOWED
    ),
    metric_issues: FOLLOWING,
    _check_recomputation: ("trainer.compile.backend", "trainer.activation_checkpointing"),
    _check_objective: ("job.objective", "job.value", "hooks"),
    _check_test_set: ("data", "hooks"),
}  # fmt: skip
"""The rules of jobs that need an optimizer, with the keys whose values they get."""
RULES: Rules = {
    _check_files: ("job._target_", "data"),
    _check_one_process: ("strategy._target_", "model._target_", "dispatch"),
    _check_names: NAMES,
    _check_start: (
        "run.dir",
        "paths.outputs",
        "run.init_from",
        "run.fork_from",
        "run.fork_without",
    ),
    _check_skip: ("data",),
    _check_folders: ("job", "data", "paths.outputs"),
    _check_signals: ("hooks",),
    deepspeed_issues: ("strategy", "trainer.sync_every_micro_batch"),
}
"""The rules of all jobs."""
