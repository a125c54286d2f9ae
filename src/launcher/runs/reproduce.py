"""Restore a run's code and packages in another folder, and compare its first checkpoint there."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.checkpoint.manifest import CorruptCheckpoint, Manifest, UnsupportedCheckpoint
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder, checkpoint_steps
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
from launcher.runs.replay import Replay, circumstances, loaded, report
from launcher.runs.rerun import add_trust, config_dirs, key_of, quoted, run_command, run_to_end
from launcher.runs.stored_run import StoredRun

PIN = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.!]+)(?:\+([\w.]+))?(  # not from an index)?")
PYTHON = re.compile(r"# \w+ (\d+\.\d+\.\d+)")
VARIANT = re.compile(r"cpu|cu\d+|rocm[\d.]+")
"""Local versions of PyTorch's own index."""
TORCH_INDEX = "https://download.pytorch.org/whl/"
REPLACED = ("dispatch", "tracker", "paths.outputs")
SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="the new folder (default: reproduced/<id>)"
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
    """Return 0 if the code is restored, and with --run the first checkpoint is bitwise identical,
    or 1 if it differs."""
    stored = find_run(arguments.run, arguments.outputs)
    place = Path(arguments.into or Path("reproduced") / stored.id).absolute()
    code = stored_code(stored)
    repository = repository_of(stored, code)
    step = first_step(stored) if arguments.start else None
    if code.diff and arguments.start and not arguments.trust:
        raise ConfigError(
            f"{stored.folder.path / CODE}: --run would run the changes in it; if you trust their"
            " author, add --trust."
        )
    command = command_of(stored, place, repository, step, arguments.trust)
    restore(stored, code, repository, place)
    for name in code.left_out:
        print(f"Left out of the run's code: {name}.")
    python = (
        sys.executable
        if arguments.here
        else make_environment(stored, place, not code.diff or arguments.trust)
    )
    folder = place / Path.cwd().relative_to(repository)
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
            f"{stored.label}: the training in {folder} ended with exit code {exit_code}."
        )
    result = compared(stored, place, step)
    report(result, False)
    return int(not result.is_equal)


def stored_code(run: StoredRun) -> StoredCode:
    """
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
    """
    Raises:
        ConfigError: the run has no checkpoint.
    """
    steps = checkpoint_steps(run.folder.checkpoints)
    if not steps:
        raise ConfigError(
            f"{run.label}: has no checkpoint in {run.folder.checkpoints} to compare with; leave"
            " --run out."
        )
    return steps[0]


def restore(run: StoredRun, code: StoredCode, repository: Path, place: Path) -> None:
    """Make a git worktree of the run's commit with its changes. A worktree of an earlier call is
    used again.

    Args:
        run: what is reproduced.
        code: its code.
        repository: has its commit.
        place: the new folder.
    Raises:
        ConfigError: the folder exists and has other code, or the changes cannot be applied.
    """
    if place.exists() and any(place.iterdir()):
        existing = parse_code(code_diff(place, place / "outputs"))
        if (existing.commit, existing.diff) != (code.commit, code.diff) or not (
            place / ".git"
        ).is_file():
            raise ConfigError(
                f"--into={place}: exists, and has not the code of {run.label}; choose another"
                " folder."
            )
        return
    done = git(repository, "worktree", "add", "--detach", str(place), str(code.commit))
    if not done.returncode and code.diff:
        done = git(
            place,
            "apply",
            "--whitespace=nowarn",
            "-",
            input=code.diff.decode(errors="surrogateescape"),
        )
        if done.returncode:
            git(repository, "worktree", "remove", "--force", str(place))
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ConfigError(
            f"--into={place}: git cannot restore the code of {run.label}"
            f" ({lines[-1] if lines else '?'})."
        )
    print(
        f"{place}: commit"
        f" {str(code.commit)[:12]}{' and the changes of code.diff' if code.diff else ''}."
    )


def command_of(
    run: StoredRun, place: Path, repository: Path, step: int | None, trust: bool
) -> list[str]:
    """Return the overrides that train the run in another folder, here and without trackers.

    Args:
        run: what is reproduced.
        place: the new folder.
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
        ranks = Manifest.read(run.folder.checkpoints / f"step-{step:08d}").world_size
        overrides += [f"dispatch.nproc={ranks}", f"trainer.pause_at={step}"]
    if flags and Path(flags[1]).is_relative_to(repository):
        flags = [flags[0], str(place / Path(flags[1]).relative_to(repository))]
    return [*overrides, f"paths.outputs={quoted(str(place / 'outputs'))}", *flags]


def threads_of(run: StoredRun) -> int | None:
    """Return the number of threads with which the oldest checkpoint was computed, or None if it is
    not known."""
    for step in checkpoint_steps(run.folder.checkpoints)[:1]:
        threads = loaded(run.folder.checkpoints / f"step-{step:08d}" / MACHINE).get("threads")
        return threads if isinstance(threads, int) else None
    return None


@dataclass(frozen=True)
class Packages:
    """The packages of an `environment.txt`.

    Args:
        python: version of the interpreter; None: not recorded.
        pins: `name==version` of those that an index has.
        variants: local versions of PyTorch's index: cpu, cu128.
        others: those from a folder or a repository.
    """

    python: str | None
    pins: list[str]
    variants: list[str]
    others: list[str]


def packages(text: str) -> Packages:
    """Read an `environment.txt`. Lines that are not a name and a version are ignored: they would be
    options of pip."""
    pins = [match.groups() for line in text.splitlines() if (match := PIN.fullmatch(line))]
    python = PYTHON.match(text)
    return Packages(
        python=None if python is None else python[1],
        pins=[
            f"{name}=={version}{f'+{local}' if local else ''}"
            for name, version, local, other in pins
            if not other
        ],
        variants=sorted(
            {local for *_, local, other in pins if local and not other and VARIANT.fullmatch(local)}
        ),
        others=[f"{name}=={version}" for name, version, _, other in pins if other],
    )


def make_environment(run: StoredRun, place: Path, trusted: bool) -> str:
    """Make a virtual environment with the run's packages, from wheels alone, which run no code when
    installed.

    Args:
        run: what is reproduced.
        place: gets `.venv`.
        trusted: the code in the folder may be installed, if the run had it installed.
    Returns:
        Its interpreter.
    Raises:
        ConfigError: the run has no list of packages, or they cannot be installed.
    """
    try:
        needed = packages((run.folder.path / ENVIRONMENT).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{run.label}: has no {ENVIRONMENT}, so its packages are not known; use --here."
        ) from error
    python = place / ".venv" / "bin" / "python"
    own = [
        name for name in needed.others if name.partition("==")[0] == project_name(place) and trusted
    ]
    for command in install_commands(needed, place, python, bool(own)):
        if "-r" in command:
            Path(command[-1]).write_text("\n".join(needed.pins) + "\n")
        print(shlex.join(command), file=sys.stderr, flush=True)
        if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode:
            raise ConfigError(
                f"{run.label}: its packages cannot be installed (see above); use --here."
            )
    if shutil.which("uv") is None and needed.python not in (
        None,
        current := sys.version.split()[0],
    ):
        print(f"Python is {current}, not {needed.python}; with uv installed it would be that.")
    for name in needed.others:
        if name not in own:
            print(f"Not from an index, so not installed: {name}.")
    return str(python)


def install_commands(
    needed: Packages, place: Path, python: Path, with_own: bool
) -> list[list[str]]:
    """Return the commands that make a virtual environment, with uv if it is there, else with pip.

    Args:
        needed: its packages.
        place: the folder with the code.
        python: the environment's interpreter.
        with_own: install the code itself.
    """
    uv, environment = shutil.which("uv"), str(python.parents[1])
    commands, version = [], [] if needed.python is None else ["--python", needed.python]
    if not python.exists():
        make = [uv, "venv", "--quiet", *version] if uv else [sys.executable, "-m", "venv"]
        commands.append([*make, environment])
    install = [str(python), "-m", "pip", "install"]
    install = [uv, "pip", "install", "--quiet", "--python", str(python)] if uv else install
    indexes = [
        word
        for variant in needed.variants
        for word in ("--extra-index-url", f"{TORCH_INDEX}{variant}")
    ]
    indexes += ["--index-strategy", "unsafe-best-match"] if uv and indexes else []
    if needed.pins:
        listed = str(Path(environment) / "requirements.txt")
        commands.append([*install, "--no-deps", "--only-binary", ":all:", *indexes, "-r", listed])
    return commands + ([[*install, "--no-deps", "-e", str(place)]] if with_own else [])


def project_name(place: Path) -> str | None:
    """Return the name of the distribution that a folder's code makes, or None if it makes none."""
    try:
        name = tomllib.loads((place / "pyproject.toml").read_text())["project"]["name"]
    except (OSError, ValueError, KeyError):
        return None
    return str(name)


def compared(run: StoredRun, place: Path, step: int) -> Replay:
    """Compare the checkpoint of the reproduction with the run's, and if they differ all that is
    recorded around them.

    Args:
        run: what was reproduced.
        place: where.
        step: of the checkpoint.
    Raises:
        ConfigError: a checkpoint is damaged.
    """
    # Torch is imported late.
    from launcher.checkpoint.difference import differences
    from launcher.checkpoint.stored import StoredCheckpoint

    copy = RunFolder(place / "outputs" / run.name / run.id)
    before, after = (folder.checkpoints / f"step-{step:08d}" for folder in (run.folder, copy))
    result = Replay(run.label, 0, step)
    try:
        result.states = [str(difference) for difference in differences(before, after)]
        result.tensors = len(StoredCheckpoint(after).names())
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
    command: Sequence[str] = ["git", "-c", f"core.hooksPath={os.devnull}", *words]
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
