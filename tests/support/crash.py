"""Saves that are killed by SIGKILL at the k-th system call that touches the disk, for every k.

Each attempt is a child process that logs its calls one by one. A power cut is worse than a kill:
data that is written and not fsynced is lost. It is simulated by zeroing those files.
"""

import logging
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from launcher.checkpoint.manifest import CorruptCheckpoint, verify
from launcher.checkpoint.retention import Retention
from launcher.checkpoint.saver import Saver
from launcher.checkpoint.store import CheckpointStore
from launcher.checkpoint.stored import StoredCheckpoint
from launcher.process.ranks import Ranks
from support.stores import payload

CALLS = ("open", "pwrite", "fsync", "rename", "replace", "symlink", "mkdir", "unlink", "rmdir")


@dataclass
class Calls:
    """Wraps the process's system calls: counts and logs them, and kills the process before call
    `kill_at`."""

    kill_at: int
    without: str | None = None
    """This call does nothing."""
    log: int = -1
    count: int = 0
    paths: dict[int, str] = field(default_factory=dict)

    def install(self) -> None:
        write = os.write
        for name in CALLS:
            setattr(os, name, self._count(name, getattr(os, name), write))

    def _count(
        self, name: str, real: Callable[..., Any], write: Callable[[int, bytes], int]
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            is_write = name != "open" or bool(args[1] & (os.O_WRONLY | os.O_RDWR))
            if name == "open" and not is_write:
                fd = real(*args, **kwargs)
                self.paths[fd] = os.fspath(args[0])
                return fd
            self.count += 1
            if self.count == self.kill_at:
                if name == "pwrite":  # half way
                    real(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
                os.kill(os.getpid(), signal.SIGKILL)
            if name == self.without:
                return None
            value = real(*args, **kwargs)
            is_open = name in ("pwrite", "fsync")
            what = self.paths.get(args[0], "?") if is_open else os.fspath(args[0])
            if name == "open":
                self.paths[value] = what
            target = os.fspath(args[1]) if name in ("rename", "replace") else ""
            if self.log >= 0:
                write(self.log, f"{name}\t{what}\t{target}\n".encode())
            return value

        return call


def killed(
    act: Callable[[], None], kill_at: int, without: str | None = None
) -> tuple[bool, list[list[str]]]:
    """Do something in a child that dies at its k-th call. Returns whether it died, and the calls it
    made."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            Calls(kill_at, without, log=writing).install()
            act()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as log:
        lines = log.read().decode().splitlines()
    _, status = os.waitpid(child, 0)
    died = os.WIFSIGNALED(status)
    assert died or os.WEXITSTATUS(status) == 0, "the save failed by itself"
    return died, [line.split("\t") for line in lines]


def save(
    root: Path, step: int, keep: int = 9, wait: bool = True, value: float = 0.0, best: bool = False
) -> None:
    """A small checkpoint of every kind of file there is."""
    state = {"step": step, "value": value or float(step), "t": torch.ones(1)}
    small = payload(step, value, best_step=step if best else None, size=300)
    saver = Saver(CheckpointStore(root), Ranks(), Retention(keep_previous=keep))
    texts = {"config.yaml": f"step: {step}\n"}
    saver.save(replace(small, global_state=state, texts=texts), wait=wait)
    saver.finish()


def cut_power(calls: list[list[str]]) -> bool:
    """Zero every file that was written and not fsynced since; names stay, as on a file system with
    a journal. Returns whether there was one."""
    unsafe: dict[str, bool] = {}
    for name, what, target in calls:
        if name in ("pwrite", "open"):
            unsafe[what] = True
        elif name == "fsync":
            unsafe.pop(what, None)
        elif name in ("rename", "replace"):
            for path in [name for name in unsafe if name == what or name.startswith(f"{what}/")]:
                unsafe[path.replace(what, target, 1)] = unsafe.pop(path)
    for path in unsafe:
        if os.path.lexists(path) and stat.S_ISREG(os.lstat(path).st_mode):
            Path(path).write_bytes(bytes(os.path.getsize(path)))
    return bool(unsafe)


@dataclass
class Scenario:
    """State before, the action, and the steps that may be the newest afterwards."""

    before: Callable[[Path], None]
    act: Callable[[Path], None]
    values: tuple[float | None, ...]
    """The values that the newest valid checkpoint may have. None: no checkpoint."""


def _steps(*steps: int) -> Callable[[Path], None]:
    return lambda root: [save(root, step) for step in steps] and None


SCENARIOS = {
    "first": Scenario(lambda root: None, lambda root: save(root, 5), (None, 5.0)),
    "second": Scenario(_steps(5), lambda root: save(root, 10, wait=False, best=True), (5.0, 10.0)),
    "again": Scenario(_steps(5, 10), lambda root: save(root, 10, value=10.5), (10.0, 10.5)),
    "prune": Scenario(_steps(5, 10), lambda root: save(root, 15, keep=0), (10.0, 15.0)),
}


def attempts(scenario: Scenario, base: Path, without: str | None = None) -> list[str]:
    """Kill at every call in turn, and then cut the power too. Returns a sentence for each problem
    afterwards."""
    wrong: list[str] = []
    template = base / "template"
    shutil.rmtree(base, ignore_errors=True)
    template.mkdir(parents=True)
    scenario.before(template)
    kill_at, died = 0, True
    while died:
        kill_at += 1
        root = base / f"at-{kill_at}"
        shutil.copytree(template, root, symlinks=True)
        died, calls = killed(lambda root=root: scenario.act(root), kill_at, without)  # type: ignore[misc]
        kept = shutil.copytree(root, base / f"kept-{kill_at}", symlinks=True)
        problems = [] if without else _problems(scenario, kept, died)
        if cut_power(calls):
            problems += _problems(scenario, root, died)
        wrong += [f"killed at call {kill_at}: {problem}" for problem in problems]
        shutil.rmtree(root)
        shutil.rmtree(kept)
    if kill_at < 15:
        wrong.append(f"only {kill_at} calls were seen")
    return wrong


def _problems(scenario: Scenario, root: Path, died: bool) -> list[str]:
    store = CheckpointStore(root)
    store.recover()
    try:
        newest = store.newest_valid()
    except CorruptCheckpoint as error:
        return [str(error)]
    value = None if newest is None else StoredCheckpoint(newest[0]).meta["value"]
    wrong = []
    if value not in (scenario.values if died else scenario.values[-1:]):
        wrong.append(f"the newest holds {value}, not one of {scenario.values}")
    if newest is not None and (StoredCheckpoint(newest[0]).read("model/w") != value).any():
        wrong.append("its tensors are of another save")
    left = [entry.name for entry in root.iterdir()]
    wrong += [
        f"{name} is left"
        for name in left
        if not name.startswith("step-") and name not in ("latest", "best")
    ]
    for step in store.steps_with_broken():
        try:
            verify(store.path(step))
        except CorruptCheckpoint as error:
            wrong.append(str(error))
    if newest is not None and store.resolve_link("latest") != newest[1].step:
        wrong.append(f"latest is {store.resolve_link('latest')}")
    save(root, 100)  # saving still works
    if store.newest_valid() is None:
        wrong.append("no save works any more")
    return wrong


def main(how: str) -> int:
    """kill, without-fsync: print the problems after each. calls: print the calls of a save."""
    torch.set_num_threads(1)
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve()
        if how == "calls":
            _steps(5)(base)
            for call in killed(lambda: save(base, 10), kill_at=-1)[1]:
                print("\t".join(call).replace(str(base), "root").replace("root/", ""))
            return 0
        wrong = False
        scenarios = {"first": SCENARIOS["first"]} if how == "without-fsync" else SCENARIOS
        for name, scenario in scenarios.items():
            without = "fsync" if how == "without-fsync" else None
            problems = attempts(scenario, base / "runs", without)
            wrong |= bool(problems)
            print(f"{name}: {len(problems)} wrong", *problems[:5], sep="\n  ")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
