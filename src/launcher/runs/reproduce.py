"""Restore a run's code and packages in another folder, and compare its first checkpoint there."""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, UnsupportedCheckpoint
from launcher.errors import ConfigError
from launcher.rundir.copied import line_differences, lines_of
from launcher.rundir.files import path_argument
from launcher.rundir.folder import RunFolder, checkpoint_steps, step_name
from launcher.rundir.provenance import MACHINE
from launcher.rundir.reproduction import (
    CODE,
    ENVIRONMENT,
    StoredCode,
    code_diff,
    environment,
    parse_code,
)
from launcher.runs.find import RUN_HELP, find_run
from launcher.runs.replay import Replay, circumstances, report, without_checkpoint
from launcher.runs.replay_copy import loaded
from launcher.runs.reproduce_environment import PIN, make_environment
from launcher.runs.rerun import add_trust, config_dirs, key_of, quoted, run_command, run_to_end
from launcher.runs.stored_run import StoredRun

REPLACED = ("dispatch", "tracker", "paths.outputs")
SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "--into",
        type=path_argument,
        metavar="DIR",
        help="the new folder (default: reproduced/<id>)",
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="use this Python and its packages, not a new environment",
    )
    parser.add_argument(
        "--run", dest="start", action="store_true", help="train there up to the first checkpoint"
    )
    add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    """Restore the code of a run, and with --run train it to its first checkpoint.

    Returns:
        0 if the code is restored, and with --run the first checkpoint is bitwise identical, or 1
        if it differs.
    """
    stored = find_run(arguments.run, arguments.outputs)
    target = Path(arguments.into or Path("reproduced") / stored.id).absolute()
    code = stored_code(stored)
    repository = repository_of(stored, code)
    step = first_step(stored) if arguments.start else None
    if code.diff and arguments.start and not arguments.trust:
        raise ConfigError(
            f"{stored.folder.path / CODE}: --run would run the changes in it; if you trust their"
            " author, add --trust."
        )
    command = command_of(stored, target, repository, step, arguments.trust)
    restore(stored, code, repository, target)
    for name in code.left_out:
        print(f"Left out of the run's code: {name}.")
    python = (
        sys.executable
        if arguments.here
        else make_environment(stored, target, not code.diff or arguments.trust)
    )
    folder = target / Path.cwd().relative_to(repository)
    threads = threads_of(stored)
    variables = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    words = [
        *(f"{name}={value}" for name, value in variables.items()),
        python,
        "-m",
        "launcher",
        *command,
    ]
    print(f"cd {shlex.quote(str(folder))} && {shlex.join(words)}", flush=True)
    if step is None:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    with_variables = ["env", *words] if variables else words
    if exit_code := run_to_end(with_variables, cwd=folder):
        raise ConfigError(
            f"{stored.label}: the training in {folder} ended with exit code {exit_code}; files that"
            " are not in git, such as data, can be linked there, and the command typed again."
        )
    result = compared(stored, target, step)
    report(result, False)
    return int(not result.is_equal)


def stored_code(run: StoredRun) -> StoredCode:
    """Return the commit of a run, and the changes in its working tree.

    Raises:
        ConfigError: the run has no commit: it was not in a repository, or is older than this
            record.
    """
    try:
        code = parse_code((run.folder.path / CODE).read_bytes())
    except OSError:
        code = StoredCode((run.record.get("git") or {}).get("commit"), b"", [])
    if code.commit is None:
        raise ConfigError(
            f"{run.label}: was not started in a git repository with a commit, so its code is not"
            " known."
        )
    return code


def repository_of(run: StoredRun, code: StoredCode) -> Path:
    """Return the top of the current folder's repository.

    Raises:
        ConfigError: the run's commit is not in it.
    """
    done = git(Path.cwd(), "rev-parse", "--show-toplevel")
    if done.returncode or git(Path.cwd(), "cat-file", "-e", f"{code.commit}^{{commit}}").returncode:
        raise ConfigError(
            f"{run.label}: its commit {str(code.commit)[:12]} is not in a git repository of the"
            " current folder; go to a clone that has it (git fetch --all)."
        )
    return Path(done.stdout.strip())


def first_step(run: StoredRun) -> int:
    """Return the step of the first checkpoint of a run.

    Raises:
        ConfigError: the run has no checkpoint.
    """
    steps = checkpoint_steps(run.folder.checkpoints)
    if not steps:
        raise ConfigError(f"{without_checkpoint(run)}, to compare with; leave --run out.")
    return steps[0]


def restore(run: StoredRun, code: StoredCode, repository: Path, target: Path) -> None:
    """Make a git worktree of the run's commit with its changes.

    A worktree of an earlier call is used again.

    Args:
        run: what is reproduced.
        code: its code.
        repository: has its commit.
        target: the new folder.
    Raises:
        ConfigError: the folder exists and has other code, or the changes cannot be applied.
    """
    if target.exists() and any(target.iterdir()):
        existing = parse_code(code_diff(target, target / "outputs"))
        if (existing.commit, existing.diff) != (code.commit, code.diff) or not (
            target / ".git"
        ).is_file():
            raise ConfigError(
                f"--into={target}: exists, and has not the code of {run.label}; choose another"
                " folder."
            )
        return
    done = git(repository, "worktree", "add", "--detach", str(target), str(code.commit))
    if not done.returncode and code.diff:
        done = git(
            target,
            "apply",
            "--whitespace=nowarn",
            "-",
            input=code.diff.decode(errors="surrogateescape"),
        )
        if done.returncode:
            git(repository, "worktree", "remove", "--force", str(target))
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ConfigError(
            f"--into={target}: git cannot restore the code of {run.label}"
            f" ({lines[-1] if lines else '?'})."
        )
    print(
        f"{target}: commit"
        f" {str(code.commit)[:12]}{' and the changes of code.diff' if code.diff else ''}."
    )


def command_of(
    run: StoredRun, target: Path, repository: Path, step: int | None, trust: bool
) -> list[str]:
    """Return the overrides that train the run in another folder, here and without trackers.

    Args:
        run: what is reproduced.
        target: the new folder.
        repository: the folder that it is a copy of.
        step: train up to this step. Default None: to the end.
        trust: whatever code the stored configuration names may run.
    """
    overrides = run_command(run, (), trust=trust)
    flags = config_dirs(run)
    overrides = [
        word
        for word in overrides[: len(overrides) - len(flags)]
        if not key_of(word).startswith(REPLACED)
    ]
    if step is not None:
        ranks = Manifest.read(run.folder.checkpoints / step_name(step)).world_size
        overrides += [f"dispatch.nproc={ranks}", f"trainer.pause_at={step}"]
    if flags and Path(flags[1]).is_relative_to(repository):
        flags = [flags[0], str(target / Path(flags[1]).relative_to(repository))]
    return [*overrides, f"paths.outputs={quoted(str(target / 'outputs'))}", *flags]


def threads_of(run: StoredRun) -> int | None:
    """Return the number of threads with which the oldest checkpoint was computed.

    Returns:
        None if it is not known.
    """
    for step in checkpoint_steps(run.folder.checkpoints)[:1]:
        threads = loaded(run.folder.checkpoints / step_name(step) / MACHINE).get("threads")
        return threads if isinstance(threads, int) else None
    return None


def compared(run: StoredRun, target: Path, step: int) -> Replay:
    """Compare the checkpoint of the reproduction with the run's, and the lines of metrics.jsonl.

    The lines up to the checkpoint are compared. If anything differs, everything that is recorded
    around it is described.

    Args:
        run: what was reproduced.
        target: the folder of the reproduction.
        step: of the checkpoint.
    Raises:
        ConfigError: a checkpoint is damaged.
    """
    # Torch is imported late.
    from launcher.checkpoint.difference import differences
    from launcher.checkpoint.stored import StoredCheckpoint

    copy = RunFolder(target / "outputs" / run.name / run.id)
    before, after = (folder.checkpoints / step_name(step) for folder in (run.folder, copy))
    result = Replay(run.label, 0, step)
    try:
        result.states = [str(difference) for difference in differences(before, after)]
        result.tensors = len(StoredCheckpoint(after).names())
        then, now = lines_of(run.folder, 0, step), lines_of(copy, 0, step)
        result.lines = len(then)
        result.metrics = line_differences(then, now, ("the run", "the reproduction"))
    except (CorruptCheckpoint, UnsupportedCheckpoint) as error:
        raise ConfigError(f"{run.label}: {error}") from error
    if not result.is_equal:
        result.circumstances = [
            *circumstances(before, after),
            *package_changes(run.folder.path, copy.path),
        ]
    return result


def package_changes(before: Path, after: Path) -> list[str]:
    """Return the packages whose versions differ between two run folders."""
    lists = []
    for folder in (before, after):
        try:
            text = (folder / ENVIRONMENT).read_text()
        except (OSError, UnicodeDecodeError):
            text = environment() if folder == after else ""
        lists.append(
            dict(
                line.split("  #")[0].split("==", 1)
                for line in text.splitlines()
                if PIN.fullmatch(line)
            )
        )
    then, now = lists
    names = sorted(
        name for name in then.keys() | now.keys() if then and then.get(name) != now.get(name)
    )
    changes = [
        f"{name}: {now.get(name, 'none')} instead of {then.get(name, 'none')}"
        for name in names[:SHOWN]
    ]
    return changes + ([f"and {len(names) - SHOWN} more packages"] if len(names) > SHOWN else [])


def git(folder: Path, *words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a git command; the checkout of a commit runs no hooks of the repository.

    Raises:
        ConfigError: there is no git.
    """
    command = ["git", "-c", f"core.hooksPath={os.devnull}", *words]
    try:
        return subprocess.run(
            command,
            cwd=folder,
            input=input,
            capture_output=True,
            text=True,
            errors="surrogateescape",
        )
    except OSError as error:
        raise ConfigError(f"git: cannot be run ({error.strerror}); install it.") from error
