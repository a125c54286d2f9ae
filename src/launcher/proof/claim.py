"""Write a claim about a run, which others can check: what trained it, and what it has reached."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from launcher.checkpoint.chain import BrokenChain, ChainWriter, read_chain
from launcher.checkpoint.drift import read_sources
from launcher.checkpoint.durable_files import nothing
from launcher.checkpoint.manifest import CorruptCheckpoint
from launcher.config.identity.course import describe_courses
from launcher.config.run_config import read_tree
from launcher.config.schema.metric_direction import sort_best_first
from launcher.config.tree import get, walk, without
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser
from launcher.process.files import read_file, replace_file
from launcher.process.plural import plural
from launcher.proof.claim_file import (
    MAX_LISTED,
    NAME,
    PREDICATE,
    STATEMENT,
    beyond_identity,
    data_of,
    describe_sweep,
    digest_file,
    digest_lines,
    paths_here,
    paths_in,
    text_of,
)
from launcher.proof.segment import load_yaml
from launcher.rundir.folder import checkpoint_steps, step_name
from launcher.rundir.history import read_rows
from launcher.rundir.lock_holder import is_held
from launcher.rundir.provenance import MACHINE
from launcher.rundir.record_format import AttemptData
from launcher.rundir.reproduction import CODE, OTHERS, parse_code
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.rundir.training_history import changes_of_code, kept_attempts, step_before
from launcher.runs.filters import number
from launcher.runs.find_runs import RUN_HELP, find_run
from launcher.runs.format import seconds_of
from launcher.runs.stored_run import StoredRun

MAX_BYTES = 4000
"""Maximum size of a claim without the identity."""
FEW_SEGMENTS = 4
MAX_TEXTS, MAX_TEXT = 4, 80
"""Changes that are not stored, and characters of each, that a claim lists."""
SPLIT = "val"
"""The first part of the metrics that can be claimed: the data of `test` are not in an identity."""


def add_arguments(parser: Parser) -> None:
    parser.argument("run", "RUN", RUN_HELP)
    parser.argument("--metric", "NAME", "val/loss, say (default: the metric of the best)")
    parser.flag("--with-paths", "publish the absolute paths that the identity has")


def run(arguments: argparse.Namespace) -> int:
    """Write `claim.json` into the run's folder."""
    stored = find_run(arguments.run, arguments.outputs)
    statement = statement_of(stored, arguments.metric)
    predicate = statement["predicate"]
    check_paths(predicate["identity"] | predicate["beyond_identity"], arguments.with_paths)
    file = stored.folder.path / NAME
    text = fit(statement)
    with stored.folder.explain_write_errors():
        replace_file(file, text.encode())
    print(f"{stored.label}: {file} ({len(text):,} bytes).")
    for sweep in predicate["sweeps"]:
        print(f"It declares that {describe_sweep(sweep)}.")
    print(*costs(stored, predicate), sep="\n", flush=True)
    return 0


def statement_of(stored: StoredRun, metric: str | None) -> dict[str, Any]:
    """Return the statement about a run.

    Raises:
        ConfigError: it cannot be claimed.
    """
    run = RunOnDisk.read(stored.path)
    steps = checkpoint_steps(run.folder.checkpoints)
    if not steps:
        raise rejection(run, "has no checkpoint")
    step = steps[-1]
    checkpoint = run.folder.checkpoints / step_name(step)
    if reason := why_not(run, stored.identity_exclude, checkpoint):
        raise rejection(run, reason)
    weights, chain = read_numbers(run, checkpoint, step)
    digests = {run.label: weights}
    for file in sorted(run.folder.export.glob("*.safetensors")):
        digests[f"export/{file.name}"] = digest_file(file)
    predicate = {
        "step": step,
        "identity_version": run.record.get("identity_version"),
        "identity": run.identity,
        "beyond_identity": beyond_identity(read_tree(checkpoint / "config.yaml")),
        "code": code_of(run, checkpoint),
        "data": data_of(run.identity or {}),
        "machine": without(load_yaml(checkpoint / MACHINE), "data"),
        "versions": run.record.get("versions"),
        "ranks": run.record.get("world_size"),
        "lanes": get(run.identity or {}, "trainer.lanes"),
        "strategy": run.record.get("strategy"),
        "metric": metric_of(run, metric, step),
        "chain": chain,
        "device_hours": device_hours(run),
        "unstored": unstored_of(run.record),
        "sweeps": sweeps_of(stored),
    }
    subject = [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()]
    return {
        "_type": STATEMENT,
        "subject": subject,
        "predicateType": PREDICATE,
        "predicate": predicate,
    }


def read_numbers(run: RunOnDisk, checkpoint: Path, step: int) -> tuple[str, dict[str, Any]]:
    """Return the digest of the weights of a checkpoint, and what a claim has of the chain to it."""
    from launcher.checkpoint.stored import weights_digest  # late: torch

    # A run that is complete has no next start, which would add the line of a killed process.
    writer = ChainWriter(run.folder, run.folder.checkpoints, nothing)
    try:
        weights = weights_digest(checkpoint)
        writer.begin(step, None)
        writer.finish()
        links = [link for link in read_chain(run.folder.chain_path) if link.step <= step]
    except CorruptCheckpoint as error:
        raise rejection(run, f"its checkpoint is damaged ({error})") from error
    except BrokenChain as error:
        raise rejection(run, f"its chain cannot be read ({error})") from error
    except OSError as error:
        raise rejection(run, f"{error.filename} cannot be read ({error.strerror})") from error
    if not links or links[-1].step != step:
        raise rejection(run, f"chain.jsonl has no line for step {step}")
    lines = [f"{link.step} {link.numbers}" for link in links]
    return weights, {"root": links[-1].digest, "length": len(links), "lines": lines}


def rejection(run: RunOnDisk, reason: str) -> ConfigError:
    return ConfigError(f"{run.label}: cannot be claimed: {reason}.")


def why_not(run: RunOnDisk, ignored: Sequence[str], checkpoint: Path) -> str | None:
    """Return the reason why nobody could check a claim about a run, or None."""
    if is_held(run.folder):
        return "it is being trained"
    if not run.record:
        return "its run.json cannot be read"
    if run.identity is None or run.record.get("identity_id") != run.id:
        return "its id is not the one of its identity (run.id=... names it)"
    if changed := describe_courses(run.record, ignored):
        return f"its identity does not tell what trained its steps ({changed})"
    if reason := why_not_alike(kept_attempts(run.attempts), get(run.identity, "trainer.lanes")):
        return reason
    device = str(load_yaml(checkpoint / MACHINE).get("device"))
    if device != "cpu" and not get(run.identity, "trainer.deterministic"):
        return f"it was trained on {device} without trainer.deterministic=true"
    return why_not_data(run.identity) or why_not_code(run, checkpoint)


def why_not_alike(attempts: Sequence[AttemptData], lanes: int | None) -> str | None:
    """Return how the attempts differ in code, machine or ranks, which a claim has once, or None."""
    layouts = [(each.get("world_size"), each.get("micro_batch_size")) for each in attempts]
    for attempt, layout in zip(attempts, layouts, strict=True):
        steps = f"its steps after {step_before(attempt)} were trained"
        if changes := changes_of_code(attempt):
            return f"{steps} after a change ({'; '.join(changes).rstrip('.')})"
        if lanes is None and layout != layouts[0]:
            ranks, size = layout
            return (
                f"{steps} on {plural(ranks or 1, 'rank')} with {size} samples a pass, and earlier"
                " ones otherwise, which differs by rounding without trainer.lanes"
            )
    return None


def why_not_data(identity: Mapping[str, Any]) -> str | None:
    """Return the reason why the data of a run are not known, or None."""
    nodes = {top: identity.get(top) or {} for top in ("data", "model")}
    for key, value in walk(nodes, lists=True):
        if not isinstance(value, str) or any(path.exists() for path in paths_here(value)):
            continue
        if "://" in value or key.endswith("pretrained"):
            return f"{key}={value} is of the network, so nobody knows that it stays the same"
        if "/" in value:
            return f"{key}={value} is not here; claim it in the folder in which it was trained"
    return None


def why_not_code(run: RunOnDisk, checkpoint: Path) -> str | None:
    """Return the reason why the code of a run is not known, or None."""
    git, sources = run.record.get("git"), read_sources(checkpoint)
    if not git or not git.get("commit"):
        return "it did not start in a git repository with a commit" if sources else None
    try:
        code = parse_code(read_file(run.folder.path / CODE))
    except OSError:
        return f"its code was changed, and it has no {CODE}" if git.get("dirty") else None
    if git.get("dirty") and not code.diff and not git.get("repositories"):
        return f"its code was changed, and {CODE} has no change"
    left_out = [name for name in code.left_out if name in sources]
    return f"{CODE} leaves out {left_out[0]}" if left_out else None


def code_of(run: RunOnDisk, checkpoint: Path) -> dict[str, Any]:
    sources, folder = read_sources(checkpoint), run.folder.path
    files = [folder / CODE, *sorted(folder.glob(OTHERS))]
    code: dict[str, Any] = {"commit": commit_of(run)}
    code["diffs"] = {file.name: digest_file(file) for file in files if file.is_file()}
    if len(sources) <= MAX_LISTED:
        return code | {"sources": sources}
    lines = [f"{name} {digest}" for name, digest in sources.items()]
    return code | {"count": len(sources), "sha256": digest_lines(lines)}


def commit_of(run: RunOnDisk) -> str | None:
    """Return the commit to which a run's code.diff applies, which a later attempt may not have."""
    with suppress(OSError):
        if commit := parse_code(read_file(run.folder.path / CODE)).commit:
            return commit
    return (run.record.get("git") or {}).get("commit")


def metric_of(run: RunOnDisk, name: str | None, step: int) -> dict[str, Any] | None:
    """Return the metric of the newest checkpoint, or None if it has none."""
    chosen = name or (run.record.get("best") or {}).get("metric") or "val/loss"
    rows = [row for row in read_rows(run.folder.metrics_path) if row.get("step") == step]
    values = {key: value for row in rows for key, value in row.items() if is_claimable(key, value)}
    if chosen in values:
        value = float(values[chosen]).hex()
        return {"name": chosen, "value": value, "split": SPLIT, "step": step}
    if name is None:
        return None
    has = f"it has {', '.join(sorted(values))}" if values else "it has none of the validation set"
    raise ConfigError(f"--metric={name}: {run.label} has no such metric at step {step}; {has}.")


def is_claimable(name: str, value: object) -> bool:
    return name.partition("/")[0] == SPLIT and isinstance(value, float | int)


def unstored_of(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how many changes of state nobody has stored, and the first of them in short."""
    lost = [str(text) for text in (record.get("unstored") or {}).get("lost") or []]
    if not lost:
        return None
    return {"count": len(lost), "first": [text[:MAX_TEXT] for text in lost[:MAX_TEXTS]]}


def sweeps_of(run: StoredRun) -> list[dict[str, Any]]:
    """Return the sweeps and searches that a run is of, as the folders next to it declare them.

    Returns:
        For each its name and the number of its runs, and the run's place among them by the best
            value of the metric that judges it.
    """
    names = sorted(_sweeps(run))
    files = run.folder.path.resolve().parents[1].glob("*/*/run.json") if names else ()
    others = [StoredRun.read(file.parent) for file in files]
    # A copy of a folder is the same run.
    runs = {each.label: each for each in [*others, run]}.values()
    return [_sweep_of(run, name, runs) for name in names]


def _sweep_of(run: StoredRun, name: str, runs: Iterable[StoredRun]) -> dict[str, Any]:
    runs = [each for each in runs if name in _sweeps(each)]
    sweep = {"name": name, "runs": len(runs)}
    if run.judged_by is None:
        return sweep
    metric, mode = run.judged_by
    judged = [each for each in runs if each.judged_by == run.judged_by]
    in_order = sort_best_first(judged, lambda each: number(each.best.get("value")), mode)
    return sweep | {"place": in_order.index(run) + 1, "metric": metric}


def _sweeps(run: StoredRun) -> set[str]:
    """Return the names of the sweeps and searches of a run."""
    trials = run.record.get("trials") or ()
    names = [run.settings.get("run.sweep"), *(trial["study"] for trial in trials)]
    return {str(name) for name in names if name is not None}


def device_hours(run: RunOnDisk) -> float:
    seconds = 0.0
    for attempt in run.attempts:
        start, end = seconds_of(attempt.get("started")), seconds_of(attempt.get("ended"))
        if start is not None and end is not None:
            seconds += (end - start) * (attempt.get("world_size") or 1)
    return round(seconds / 3600, 4)


def check_paths(identity: Mapping[str, Any], with_paths: bool) -> None:
    """Print the paths that a claim publishes; absolute ones need `--with-paths`."""
    paths = paths_in(identity)
    absolute = [path for path in paths if path.partition("=")[2][:1] in ("/", "~")]
    if absolute and not with_paths:
        raise ConfigError(
            f"{absolute[0]}: is an absolute path, which a claim would publish; add --with-paths, or"
            " train with a relative one."
        )
    for path in paths:
        print(f"The claim publishes {path}.", file=sys.stderr)


def fit(statement: dict[str, Any]) -> str:
    """Return the text of a claim, with as many lines of the chain as it has room for."""
    predicate = statement["predicate"]
    all_lines = predicate["chain"]["lines"]
    for count in range(min(MAX_LISTED, len(all_lines)), 0, -1):
        # The last line, and others at equal distances.
        places = sorted({len(all_lines) - 1 - i * len(all_lines) // count for i in range(count)})
        predicate["chain"]["lines"] = [all_lines[place] for place in places]
        text = text_of({**statement, "predicate": {**predicate, "identity": {}}})
        if len(text.encode()) <= MAX_BYTES:
            break
    return text_of(statement)


def costs(stored: StoredRun, predicate: Mapping[str, Any]) -> Iterator[str]:
    """Describe what each level of a check costs."""
    steps = checkpoint_steps(stored.folder.checkpoints)
    step, hours = predicate["step"], predicate["device_hours"]
    longest = max(end - start for start, end in pairwise([0, *steps]))
    yield "Level 0 reads the data, level 1 evaluates once (it needs this folder)."
    yield (
        f"Level 2 trains segments again: there {'is' if len(steps) == 1 else 'are'}"
        f" {plural(len(steps), 'segment')} between kept checkpoints, of at most"
        f" {plural(longest, 'step')}, {hours * longest / step:.2g} device hours."
    )
    yield f"Level 3 trains {plural(step, 'step')} again, {hours:.2g} device hours."
    if len(steps) < FEW_SEGMENTS:
        yield "More segments are cheaper to check: hooks.checkpointing.keep_interval=N keeps more."
