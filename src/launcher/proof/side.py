"""A training of a preset with one side's code, in a process of its own."""

import hashlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from launcher.config.options import own_folder
from launcher.errors import REJECTED
from launcher.process.child import describe_end, last_lines, start_child
from launcher.process.plural import plural
from launcher.process.waits import wait_for_future
from launcher.proof import guard_job
from launcher.proof.code_copy import Code
from launcher.proof.scratch_run import LAST_LINES, LOG_PREFIX, without_job

T = TypeVar("T")
DEVICE = "device=cpu"
"""The device of both sides, unless the overrides choose one."""


@dataclass(frozen=True)
class Preset:
    """Overrides that are trained by both sides.

    Args:
        name: its name in messages and in `guard.lock`.
        overrides: the arguments of the command line.
        steps: optimizer steps to train.
        function: the file, relative to the top of the code, and the name of a function that makes
            a trainer. It is trained in place of a configuration.
    """

    name: str
    overrides: tuple[str, ...]
    steps: int
    function: tuple[str, str] | None = None

    def typed(self) -> list[str]:
        has_device = any(word.lstrip("+").startswith("device=") for word in self.overrides)
        return [*self.overrides, *([] if has_device else [DEVICE])]


class NotTrained(Exception):
    """A side cannot train the preset. The message says why.

    Args:
        label: the name of the code.
        is_rejected: its configuration is rejected, as if an option is absent there.
    """

    def __init__(self, message: str, label: str, is_rejected: bool):
        super().__init__(message)
        self.label = label
        self.is_rejected = is_rejected


class Place(NamedTuple):
    """The place of a value in a training: one of the kinds that `guard_job.values_of` yields."""

    step: int
    kind: str
    rank: int = 0
    name: str = ""


@dataclass(frozen=True)
class Side:
    """A training that has ended.

    Args:
        code: the code that has trained.
        trace: the folder of its `GuardHook`.
        values: all that it has read and computed.
        end: the last step.
        config: the configuration as it is stored, empty for a trainer without one.
        modules: the file of each imported module.
        machine: what decides the last bits: processor, libraries, threads, device.
    """

    code: Code
    trace: Path
    values: Mapping[Place, Any]
    end: int
    config: Mapping[str, Any]
    modules: Mapping[str, str]
    machine: str

    def losses(self) -> list[str]:
        """Return the losses of the steps as hex floats, of rank 0's micro-batches."""
        losses = [self.values.get(Place(step, "loss"), ()) for step in range(1, self.end + 1)]
        return [loss for of_step in losses for loss in of_step]

    def digest(self) -> str:
        """Return a digest of all that it has read and computed, without names of parameters."""
        values = [(*place[:3], value) for place, value in self.values.items()]
        # The state has names, and it is computed from what is hashed.
        texts = sorted(json.dumps(value, sort_keys=True) for value in values if value[1] != "state")
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def new_folder(root: Path) -> Path:
    """Make a folder for a training."""
    return Path(tempfile.mkdtemp(prefix="training-", dir=root))


def train(
    code: Code, preset: Preset, root: Path, keep: int | None = None, steps: int | None = None
) -> Side:
    """Train a preset with the code of a side, and return the training.

    Args:
        code: the code that trains.
        preset: what is trained.
        root: an empty folder for all of its files.
        keep: keep the gradients and weights of this step.
        steps: train fewer steps than the preset has.
    Raises:
        NotTrained: the training has failed, or its configuration is rejected.
    """
    steps = steps or preset.steps
    print(f"{preset.name}: {plural(steps, 'step')} with {code.label}", file=sys.stderr, flush=True)
    options = own_folder(code.root / code.here)
    request: dict[str, object] = {
        "overrides": preset.typed(),
        "config_dir": None if options is None else str(options),
        "steps": steps,
        "longest": preset.steps,
        "root": str(root),
        "keep": keep,
    }
    if preset.function is not None:
        file, name = preset.function
        request["function"] = [str(code.root / file), name]
    (root / "request.json").write_text(json.dumps(request))
    exit_code = _run(root / "request.json", root / "log", code)
    if exit_code:
        reason = _reason(exit_code, root / "log")
        raise NotTrained(reason, code.label, exit_code == REJECTED)
    content = json.loads((root / "values.json").read_bytes())
    values = {Place(*place): value for place, value in content.pop("values")}
    return Side(code, root / "trace", values, **content)


def _run(request: Path, log: Path, code: Code) -> int:
    """Run `guard_job` in the working folder with the code of a side; return its exit code."""
    if _stopped.is_set():
        raise KeyboardInterrupt
    # In Launcher's own repository, another commit's modules fit only that commit's program.
    program = code.version_of(Path(guard_job.__file__))
    command = [sys.executable, str(program), str(request)]
    process = start_child(command, log, without_job(code.environment()))
    _running.add(process)
    if _stopped.is_set():
        process.terminate()
    exit_code = process.wait()
    _running.discard(process)
    if _stopped.is_set():
        raise KeyboardInterrupt
    return exit_code


_running: set[subprocess.Popen[Any]] = set()
"""The trainings of this process, of all of its threads."""
_stopped = threading.Event()


def stop_all() -> None:
    """Stop the trainings that threads wait for, and those that they are about to start."""
    # In this order: a training that is not seen here yet sees the flag.
    _stopped.set()
    for process in list(_running):
        process.terminate()


def in_threads(judge: Callable[[Preset], T], presets: Iterable[Preset], count: int) -> Iterator[T]:
    """Yield the result of each preset, some judged at a time.

    Only the main thread gets Ctrl-C, so no training that a thread has started is lost by it. All of
    them have ended when this returns or raises.
    """
    with ThreadPoolExecutor(count) as pool:
        try:
            for future in [pool.submit(judge, preset) for preset in presets]:
                yield wait_for_future(future)
        except BaseException:
            stop_all()
            pool.shutdown(cancel_futures=True)
            _stopped.clear()
            raise


def _reason(code: int, log: Path) -> str:
    lines = last_lines(log, LAST_LINES)
    if code == REJECTED:
        return " ".join(line for line in lines if not LOG_PREFIX.match(line))
    return ": ".join([describe_end(code), *lines[-1:]])
