"""Verbs that repeat the command line that launched a run."""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from launcher.config.identity.difference import is_within
from launcher.errors import ConfigError
from launcher.process.argument_parser import Parser, path_argument
from launcher.process.child import run_to_end
from launcher.process.gpus import count_gpus
from launcher.runs.filters import is_condition, select_some
from launcher.runs.find_runs import RUN_HELP, find_run, find_runs
from launcher.runs.stored_run import StoredRun

REPLACED_KEYS = (
    *("run.name", "run.id", "run.dir", "run.resume"),
    *("trainer.pause_at", "paths.outputs", "job"),
)
"""Overrides of the original command line that are replaced, or that a later command must not
repeat."""
OF_ONE_RUN = {
    "push": "a repository has one; name one",
    "out": "each has predictions of its own; leave it out, and each run's folder gets them",
}
"""Options that several runs cannot share, and why."""
SIGNAL_CODE = 128
VERBS = {
    "resume": "Resume runs: repeat the command that started each.",
    "evaluate": "Evaluate a checkpoint of each run; job.checkpoint=1400 chooses it.",
    "export": "Export weights of each run as safetensors; job.checkpoint=1400 chooses them.",
    "predict": "Write predictions of each run for new data; job.checkpoint=1400 chooses weights.",
}


def add_arguments(parser: Parser) -> None:
    parser.usage = "%(prog)s [options] (RUN [OVERRIDE ...] | FILTER ... [-- OVERRIDE ...])"
    parser.argument(
        "words",
        "RUN",
        f"{RUN_HELP}, then overrides: trainer.max_steps=2000; or filters: model=mlp"
        " 'val/loss<2', and overrides after --",
        nargs="+",
    )
    if parser.prog.endswith(" evaluate"):
        parser.flag("--follow", "every checkpoint that the run has, and saves while it trains")
    if parser.prog.endswith(" predict"):
        parser.argument(
            "--data", "FILE", "a path or glob of the new data; may be repeated", action="append"
        )
        parser.argument(
            "--out",
            "FILE",
            "*.jsonl (default: predictions/<data>.jsonl in the run's folder)",
            type=path_argument,
        )
    if parser.prog.endswith(" export"):
        parser.argument("--push", "OWNER/NAME", "a repository of the Hugging Face Hub")
    add_trust(parser)


def add_trust(parser: Parser) -> None:
    parser.flag("--trust", "run whatever code the run's stored configuration names")


def run(arguments: argparse.Namespace) -> int:
    """Run the command again for each run in turn; return the first exit code that is not 0."""
    job = None if arguments.verb == "resume" else arguments.verb
    chosen, overrides = runs_and_overrides(arguments)
    trust = arguments.trust or (job is not None and "job.trust=true" in overrides)
    overrides += _options(arguments, len(chosen))
    commands = []
    for run in chosen:
        ranks = ranks_like(run, overrides) if job == "evaluate" else []
        commands.append(run_command(run, [*overrides, *ranks], job, trust))
    if len(commands) == 1:
        start_in_place(commands[0])
    codes = []
    for command in commands:
        codes.append(start(command))
        if codes[-1] >= SIGNAL_CODE:
            break
    return next((code for code in codes if code), 0)


def _options(arguments: argparse.Namespace, count: int) -> list[str]:
    """Return the overrides that a verb's own options stand for."""
    data = getattr(arguments, "data", None)
    out = getattr(arguments, "out", None)
    repository = getattr(arguments, "push", None)
    for option, value in {"push": repository, "out": out}.items():
        if value and count > 1:
            text = f"--{option} {value}: {count} runs are selected, and {OF_ONE_RUN[option]}."
            raise ConfigError(text)
    overrides = ["job.follow=true"] if getattr(arguments, "follow", False) else []
    if data:
        files = ",".join(map(quote, data))
        overrides.append(f"data.predict=[{files}]" if len(data) > 1 else f"data.predict={files}")
    if out:
        overrides.append(f"job.file={quote(str(out))}")
    if repository:
        overrides.append(f"job.push={quote(repository)}")
    return overrides


def ranks_like(run: StoredRun, overrides: Sequence[str]) -> list[str]:
    """Return overrides that evaluate a run on as many ranks as trained it, if they fit here.

    Another number of ranks gives other last digits.
    """
    count = run.record.get("world_size") or 1
    chosen = {key_of(override).partition(".")[0] for override in overrides}
    if chosen & {"dispatch", "strategy", "device"}:
        return []
    num_gpus = count_gpus() if run.text("device") in ("auto", "cuda") else 0
    if count == max(1, num_gpus):
        return []
    room = num_gpus or os.cpu_count() or 1
    if count <= room:
        return ["dispatch=local", f"dispatch.nproc={count}"]
    print(
        f"{run.label} was trained on {count} ranks, and this machine has room for {room}: the last"
        " digits of its metrics may differ.",
        file=sys.stderr,
    )
    return []


def runs_and_overrides(arguments: argparse.Namespace) -> tuple[list[StoredRun], list[str]]:
    """Split the arguments `RUN [OVERRIDE ...]` or `FILTER ... [-- OVERRIDE ...]`.

    A filter and an override look the same, so all words before `--` are filters if the first is.
    """
    first, *others = arguments.words
    if not _is_filter(first):
        return [find_run(first, arguments.outputs)], [*others, *arguments.after]
    return select_runs(arguments.words, arguments.outputs), list(arguments.after)


def select_runs(words: Sequence[str], outputs: Path) -> list[StoredRun]:
    """Return the runs that fulfil all filters (`state=completed sweep=lr`), or that words name."""
    if any(map(_is_filter, words)):
        return select_some(find_runs(outputs), words, outputs)
    return list({run.path: run for run in (find_run(word, outputs) for word in words)}.values())


def _is_filter(word: str) -> bool:
    return is_condition(word) and not (Path(word) / "run.json").is_file()


def run_command(
    run: StoredRun, overrides: Sequence[str] = (), job: str | None = None, trust: bool = False
) -> list[str]:
    """Return the arguments a run was launched with, its id, then `overrides`.

    With a `job` it runs here, not on SLURM.
    """
    if run.record.get("overrides") is None:
        raise ConfigError(
            f"'{run.label}': run.json has no overrides, so its command line is not known; "
            f"run the command itself with run.id={run.id}."
        )
    words = [word for word in run.overrides if key_of(word) not in REPLACED_KEYS]
    if job is not None:
        words = [word for word in words if not is_within(key_of(word), ("dispatch", "job"))]
    if not trust:
        check_overrides(run, words)
    outputs = outputs_of(run.folder.path.absolute(), run.name)
    identity = {"run.name": run.name, "run.id": run.id, "paths.outputs": str(outputs)}
    if any(key_of(word) == "run.dir" for word in run.overrides):
        # The record may have come from elsewhere with its folder, and the run is where it is.
        identity["run.dir"] = str(run.folder.path.absolute())
    if job is not None:
        identity |= {"job": job} | ({"job.trust": "true"} if trust else {})
    typed = {key_of(override) for override in overrides}
    return [
        *applicable(words, overrides, run.record.get("config_dir")),
        *(f"{key}={quote(value)}" for key, value in identity.items() if key not in typed),
        *overrides,
        *config_dirs(run),
    ]


def check_overrides(run: StoredRun, overrides: Sequence[str]) -> None:
    """Check stored overrides of a run, before they are composed, unless they are signed."""
    if not run.is_own:
        # Hydra is imported late, since listing runs need not load it.
        from launcher.config.trust import check_overrides as check_stored

        check_stored(overrides, run.record.get("config_dir"), run.folder.record_path)


def applicable(inherited: list[str], overrides: Sequence[str], config_dir: str | None) -> list[str]:
    """Return the inherited overrides without keys of a group that `overrides` replaces.

    For instance, `hooks=[default]` has no key `hooks.early_stopping`. They are printed.
    """
    groups = {key_of(override): override for override in overrides if "." not in key_of(override)}
    doubtful = [
        word
        for word in inherited
        if "." in key_of(word) and key_of(word).partition(".")[0] in groups
    ]
    if not doubtful or (config_dir is not None and not Path(config_dir).is_dir()):
        return inherited
    from launcher.config.compose.composer import not_applicable

    lost = not_applicable(doubtful, [*inherited, *overrides], config_dir)
    for word in lost:
        print(
            f"{word} is left out: {groups[key_of(word).partition('.')[0]]} has no such key.",
            file=sys.stderr,
        )
    return [word for word in inherited if word not in lost]


def key_of(override: str) -> str:
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def quote(value: str) -> str:
    """Quote a value for the command line if it has special characters."""
    if re.fullmatch(r"[\w./-]+", value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def outputs_of(folder: Path, name: str) -> Path:
    """Return `paths.outputs` of a run folder. A name may have several parts."""
    return folder.parents[len(Path(name).parts)]


def config_dirs(run: StoredRun) -> list[str]:
    folder = run.record.get("config_dir")
    return ["--config-dir", folder] if folder else []


def start_in_place(command: list[str]) -> NoReturn:
    """Replace this process by the command, which has its own signals, terminal and exit code."""
    announce(command)
    os.execv(sys.executable, [sys.executable, "-m", "launcher", *command])


def start(command: list[str]) -> int:
    announce(command)
    return run_to_end([sys.executable, "-m", "launcher", *command])


def announce(command: list[str]) -> None:
    print(f"python -m launcher {shlex.join(command)}", file=sys.stderr, flush=True)
