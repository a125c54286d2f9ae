"""Rules across several keys, and about files and folders.

The code that depends on a rule calls the same function.
"""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import iglob
from math import lcm
from pathlib import Path
from typing import Any

from launcher.config.messages import ConfigIssue, show
from launcher.config.omegaconf_nodes import settings_of
from launcher.config.schema import deepspeed_file
from launcher.config.schema.declared import declared, parts, providing
from launcher.config.schema.hook_dependencies import metric_issues, need_issues
from launcher.config.schema.lane_rules import lane_issues, multiples, support_issue
from launcher.config.schema.matters_from import is_ours
from launcher.config.schema.metric_direction import direction
from launcher.config.schema.node_range import NodeRange, ranks_per_node
from launcher.config.schema.own_optimizers import own_optimizer_issues
from launcher.config.settings import TrainerSettings
from launcher.config.tree import Node, get, items
from launcher.process.files import expand
from launcher.process.plural import plural
from launcher.process.users import ask_owner, other_owner
from launcher.rundir.folder import checkpoint_of, checkpoint_steps, weights_source

CHECKPOINTING = "checkpointing"
"""The hook that saves and resumes, as its class has it in `provides`."""
NAME = re.compile(r"\w[\w.+=@-]*")
MAX_NAME_BYTES = 128
NEW_DATA = "predict"
"""The key of `data` with the data of job=predict."""
PICKLES = {".pt", ".pth", ".ckpt", ".bin", ".pkl"}
PICKLES_OF_FOLDERS = ("pytorch_model.bin", "pytorch_model.pt", "model.pt")


def crosschecks(tree: dict[str, object]) -> Iterator[ConfigIssue]:
    """The errors of a resolved configuration. Values of a wrong type are reported by the schema."""
    job = tree.get("job")
    if declared(job, "needs_optimizer"):
        yield from _check_batch(tree)
        yield from _check_lanes(tree)
        yield from _check_warmup(tree)
        yield from _check_without_checkpoints(tree)
        yield from need_issues(tree)
        yield from own_optimizer_issues(tree)
        yield from metric_issues(tree)
        yield from _check_recomputation(tree)
        yield from _check_objective(tree)
        yield from _check_test_set(tree)
    yield from _check_files(tree, declared(job, "reads"))
    yield from _check_one_process(tree)
    yield from _check_names(tree)
    yield from _check_start(tree)
    yield from _check_folders(tree)
    yield from _check_signals(tree)
    yield from deepspeed_file.crosschecks(tree)


def _issue(tree: dict[str, Any], key: str, text: str) -> ConfigIssue:
    """Return an issue of a key with its value, a text without quotes."""
    return ConfigIssue(key, show(get(tree, key), 200).strip("'"), text)


def _check_objective(tree: dict[str, object]) -> Iterator[ConfigIssue]:
    """`job.objective`, whose best value is the least or the greatest."""
    metric, followed = get(tree, "job.objective"), get(checkpointing(tree), "best_metric")
    if not isinstance(metric, str) or get(tree, "job.value") == "last" or metric == followed:
        return
    if direction(metric) is None:
        yield ConfigIssue(
            "job.objective",
            show(metric),
            "the name does not show whether less or more is better; use job.value=last, or set"
            f" hooks.checkpointing.best_metric={metric} and hooks.checkpointing.best_mode.",
        )


def _check_test_set(tree: dict[str, Any]) -> Iterator[ConfigIssue]:
    """Check that the data have a test set, as far as their settings show it."""
    data = tree.get("data")
    if not isinstance(data, dict) or data.get("test_dataset") is not None:
        return
    # A data source of the user's own may make one without a key.
    if "test_dataset" not in data and not is_ours(data.get("_target_")):
        return
    for path, hook in parts(tree, "hooks").items():
        if "evaluation" in (declared(hook, "provides") or ()) and hook.get("test") is not None:
            text = "the data have no test set; set data.test_dataset, or leave it out."
            yield _issue(tree, f"{path}.test", text)


def _count(tree: dict[str, object], path: str) -> int | None:
    value = get(tree, path)
    return value if type(value) is int and value > 0 else None


def batch_issue(size: int, world_size: int, source: str | None = None) -> ConfigIssue | None:
    """Check that the samples of a step divide evenly over the ranks."""
    if size % world_size == 0:
        return None
    ranks = f"{world_size} ranks ({source})" if source else f"{world_size} ranks"
    return ConfigIssue(
        "data.batch_size",
        str(size),
        f"is not divisible by {ranks}; use {multiples(size, world_size)}.",
    )


def _check_batch(tree: dict[str, object]) -> Iterator[ConfigIssue]:
    """Check that the samples of a step divide evenly over any number of ranks."""
    size, nodes = _count(tree, "data.batch_size"), _node_range(tree)
    if get(tree, "trainer.lanes") is not None or not size:
        return
    if nodes.is_open:
        yield from _check_nodes(size, nodes, _tasks_per_node(tree))
    elif issue := batch_issue(size, *_fewest_ranks(tree)):
        yield issue


def _node_range(tree: dict[str, object]) -> NodeRange:
    return NodeRange.parse(get(tree, "dispatch.nodes")) or NodeRange(1, 1)


def _tasks_per_node(tree: dict[str, object]) -> int:
    return ranks_per_node(dict(items(tree, "dispatch")))


def _fewest_ranks(tree: dict[str, object]) -> tuple[int, str]:
    """Return the smallest number of ranks of an attempt (1 for `nproc=auto`), and its keys."""
    nproc = _count(tree, "dispatch.nproc")
    nodes = _node_range(tree)
    tasks = _tasks_per_node(tree)
    source = f"dispatch.nproc={nproc}" if nproc else f"{tasks} per node"
    source += f" x {nodes} nodes" if nodes.max > 1 else ""
    return (nproc or tasks) * nodes.min, source


def _check_one_process(tree: dict[str, object]) -> Iterator[ConfigIssue]:
    """Check that a strategy of one process gets one rank."""
    (ranks, source), nodes = _fewest_ranks(tree), _node_range(tree)
    strategy, model = tree.get("strategy"), tree.get("model")
    has_one = declared(strategy, "one_process") or declared(model, "owns_optimizers")
    if has_one and ranks * nodes.max > nodes.min:
        text = f"uses one rank, and gets more ({source}); use one."
        yield ConfigIssue("strategy", declared(strategy, "name"), text)


def _check_lanes(tree: dict[str, Any]) -> Iterator[ConfigIssue]:
    """Check that the smallest number of nodes divides `trainer.lanes`."""
    lanes = get(tree, "trainer.lanes")
    if type(lanes) is not int or lanes < 1:
        return
    settings = settings_of(TrainerSettings, tree["trainer"])
    yield from lane_issues(settings, _count(tree, "data.batch_size"), *_fewest_ranks(tree))
    if declared(tree.get("strategy"), "is_deepspeed"):
        yield support_issue(lanes, "deepspeed")


def _check_nodes(size: int, nodes: NodeRange, tasks: int) -> Iterator[ConfigIssue]:
    """Check that each number of nodes that a job may get divides the batch."""
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


def warmup_issue(steps: int | None, ratio: float | None, total: int | None) -> ConfigIssue | None:
    """Check that at most one of the two settings is set, and the warm-up fits the run."""
    if steps and ratio:
        text = (
            f"scheduler.warmup_ratio={show(ratio)} is set too, and only one may be; e.g."
            " scheduler.warmup_ratio=null."
        )
        return ConfigIssue("scheduler.warmup_steps", show(steps), text)
    if steps and total and steps > total:
        return ConfigIssue(
            "scheduler.warmup_steps",
            show(steps),
            f"the run has only {plural(total, 'step')}; use at most {total}.",
        )
    return None


def _check_warmup(tree: dict[str, Any]) -> Iterator[ConfigIssue]:
    steps, ratio = get(tree, "scheduler.warmup_steps"), get(tree, "scheduler.warmup_ratio")
    total = _count(tree, "scheduler.max_steps") or _count(tree, "trainer.max_steps")
    if get(tree, "trainer.max_epochs") is not None:
        # The number of steps in epochs depends on the data.
        total = None
    if type(steps) is int and (issue := warmup_issue(steps, ratio, total)):
        yield issue


def _check_without_checkpoints(tree: dict[str, object]) -> Iterator[ConfigIssue]:
    """Reject settings that need hooks.checkpointing, which saves and resumes."""
    if checkpointing(tree) is not None:
        return
    is_set = {
        "trainer.pause_at": type(get(tree, "trainer.pause_at")) is int,
        "run.resume": get(tree, "run.resume") == "must",
        "run.fork_from": get(tree, "run.fork_from") is not None,
    }
    for key, value in is_set.items():
        if value:
            yield _issue(tree, key, "needs hooks.checkpointing, which saves and resumes; keep it.")


def checkpointing(config: Node) -> Node | None:
    """Return the hook that saves and resumes, by what its class declares, else by its name."""
    named = get(config, f"hooks.{CHECKPOINTING}")
    return next(iter(providing(config, CHECKPOINTING)), named)


def _check_recomputation(tree: dict[str, object]) -> Iterator[ConfigIssue]:
    """Check activation checkpointing in a compiled model."""
    backend = get(tree, "trainer.compile.backend")
    # AOT autograd lets a block that is recomputed repeat its dropout.
    if not isinstance(backend, str) or backend.startswith(("aot_", "inductor", "cudagraphs")):
        return
    key = "trainer.activation_checkpointing"
    if (value := get(tree, key)) not in (None, "none"):
        text = (
            f"with {key}={value} a block that is recomputed draws other dropout masks than before,"
            f" so the gradient is wrong; use trainer.compile.backend=aot_eager, or {key}=none."
        )
        yield ConfigIssue("trainer.compile.backend", backend, text)


def no_file(key: str, pattern: str) -> ConfigIssue:
    where = "" if expand(pattern).is_absolute() else f" (looked in {Path.cwd()})"
    return ConfigIssue(key, show(pattern, 200), f"matches no file{where}.")


def _check_files(tree: dict[str, object], patterns: Sequence[str]) -> Iterator[ConfigIssue]:
    """Check the files of `data` that a job reads."""
    if NEW_DATA in patterns:
        yield from _check_new_data(tree)
    for key, value in items(tree, "data"):
        if any(fnmatchcase(str(key), pattern) for pattern in patterns):
            yield from _check_patterns(f"data.{key}", value)


def address_issues(tree: dict[str, Any]) -> Iterator[ConfigIssue]:
    """Report addresses in place of files; other messages about the data would mislead."""
    for key, value in items(tree, "data"):
        if key in ("files", "predict") or str(key).endswith("_files"):
            for pattern in value if isinstance(value, list) else [value]:
                if isinstance(pattern, str) and "://" in pattern:
                    text = (
                        "is an address, and files are read from a file system; copy the files, or"
                        " mount their bucket, or read them in a dataset of your own (data=custom)."
                    )
                    yield ConfigIssue(f"data.{key}", show(pattern, 200), text)


def _check_new_data(tree: dict[str, object]) -> Iterator[ConfigIssue]:
    """Check that there is `data.predict`."""
    data, value = get(tree, "data"), get(tree, "data.predict")
    if value is None and isinstance(data, dict):
        text = "job=predict needs new data; e.g. data.predict=new.jsonl."
        if "predict" not in data:
            source = str(data.get("_target_")).rpartition(".")[2]
            text = (
                f"job=predict needs new data, which {source} does not read; use data=table, jsonl,"
                " parquet, text, tokens or custom."
            )
        yield ConfigIssue("data.predict", None, text)


def _check_patterns(key: str, value: Any) -> Iterator[ConfigIssue]:
    for pattern in value if isinstance(value, list) else [value]:
        is_path = isinstance(pattern, str) and "://" not in pattern
        if is_path and not (pattern and _matches(expand(pattern))):
            yield no_file(key, pattern)


def _matches(path: Path) -> bool:
    return path.exists() or any(True for _ in iglob(str(path), recursive=True))


def _check_names(tree: dict[str, object]) -> Iterator[ConfigIssue]:
    for key in ("run.name", "run.id", "run.tag", "hpo.name"):
        value = get(tree, key)
        if isinstance(value, str) and not (
            NAME.fullmatch(value) and len(value.encode()) <= MAX_NAME_BYTES
        ):
            text = (
                f"should be a valid folder name of at most {MAX_NAME_BYTES} bytes: letters, digits"
                " and . _ - + = @, starting with a letter, digit or _."
            )
            yield ConfigIssue(key, show(value), text)


def _check_start(tree: dict[str, Any]) -> Iterator[ConfigIssue]:
    """Check the checkpoint or the weights that a run starts from, until it has its own."""
    if get(tree, "run.fork_without") and get(tree, "run.fork_from") is None:
        yield _issue(tree, "run.fork_without", "is for a fork; set run.fork_from too.")
    if checkpoint_steps(expand(str(get(tree, "run.dir"))) / "checkpoints"):
        return
    yield from _check_fork(tree)
    init_from = get(tree, "run.init_from")
    if not isinstance(init_from, str):
        return
    source = weights_source(expand(str(get(tree, "paths.outputs"))), init_from)
    issue = "there is no such file or folder, and no run of this id, or several."
    if source is None or (issue := no_weights(source) or ""):
        yield ConfigIssue("run.init_from", show(init_from, 200), issue)


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


def _check_fork(tree: dict[str, object]) -> Iterator[ConfigIssue]:
    source = get(tree, "run.fork_from")
    if not isinstance(source, str):
        return
    texts = []
    if get(tree, "run.init_from") is not None:
        texts.append("run.init_from is set too; a run starts from one of them.")
    if checkpoint_of(expand(str(get(tree, "paths.outputs"))), source) is None:
        text = "there is no such checkpoint; give <run id>/<step>, or the folder of a checkpoint."
        texts.append(text)
    yield from (ConfigIssue("run.fork_from", show(source, 200), text) for text in texts)


def _check_folders(tree: dict[str, object]) -> Iterator[ConfigIssue]:
    """Check that a folder that is written to exists, or can be created."""
    written = [
        f"{group}.{key}" for group in ("job", "data") for key in declared(tree.get(group), "writes")
    ]
    for key in ["paths.outputs", *written]:
        value = get(tree, key)
        if isinstance(value, str) and (text := _why_not_writable(value)):
            yield ConfigIssue(key, show(value, 200), text)


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


def _check_signals(tree: dict[str, Any]) -> Iterator[ConfigIssue]:
    """Check `exit_signals` of any hook."""
    for name, _ in items(tree, "hooks"):
        key = f"hooks.{name}.exit_signals"
        value = get(tree, key)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str | int) and (issue := signal_issue(key, item)):
                yield issue
