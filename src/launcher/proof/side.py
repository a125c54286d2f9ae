"""A training of a preset with one side's code, in a process of its own."""

import hashlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from launcher.errors import REJECTED
from launcher.process.child import describe_end, last_lines, start_child
from launcher.process.plural import plural
from launcher.process.waits import wait_for_process
from launcher.proof import guard_job
from launcher.proof.code_copy import Code
from launcher.proof.scratch_run import LAST_LINES, LOG_PREFIX, Traced, without_job
from launcher.rundir.folder import RunFolder, step_name
from launcher.rundir.provenance import MACHINE

HOOK = "launcher.proof.guard_trace.GuardHook"
DEVICE = "device=cpu"
"""The device of both sides, unless the overrides choose one."""


@dataclass(frozen=True)
class Preset:
    """Overrides that are trained by both sides.

    Args:
        name: its name in messages and in `guard.lock`.
        overrides: the arguments of the command line.
        steps: optimizer steps to train.
        config_dir: a folder of options, as `--config-dir`.
        function: the file, relative to the top of the code, and the name of a function that makes
            a trainer. It is trained in place of a configuration.
    """

    name: str
    overrides: tuple[str, ...]
    steps: int
    config_dir: Path | None = None
    function: tuple[str, str] | None = None

    def typed(self) -> list[str]:
        has_device = any(word.lstrip("+").startswith("device=") for word in self.overrides)
        return [*self.overrides, *([] if has_device else [DEVICE])]


class NotTrained(Exception):
    """A side cannot train the preset. The message says why.

    Args:
        is_rejected: its configuration is rejected, as if an option is absent there.
    """

    def __init__(self, message: str, is_rejected: bool):
        super().__init__(message)
        self.is_rejected = is_rejected


@dataclass
class Side(Traced):
    """A training that has ended.

    Args:
        code: the code that has trained.
        config: the configuration as it is stored, empty for a trainer without one.
        end: the last step.
    """

    code: Code
    config: Mapping[str, Any]
    end: int

    @cached_property
    def rates(self) -> list[list[float]] | None:
        """The rates of the steps after the last, or None if the schedule follows a metric."""
        rates: list[list[float]] | None = json.loads((self.trace / "rates.json").read_bytes())
        return rates

    @cached_property
    def steps(self) -> dict[int, dict[int, dict[str, Any]]]:
        """The lines of the traces, by rank and step."""
        from launcher.proof.diff import read_trace  # late: torch

        return read_trace(self.trace)

    @property
    def last_checkpoint(self) -> Path:
        return self.folder.checkpoints / step_name(self.end)

    @cached_property
    def machine(self) -> Mapping[str, Any] | None:
        """The record of the machine, or None for a trainer without a configuration."""
        file = self.last_checkpoint / MACHINE
        return yaml.safe_load(file.read_text()) if file.exists() else None

    def list_foreign(self) -> list[str]:
        """Say which modules this side has not imported from its own code."""
        return self.code.list_foreign(json.loads((self.trace / "modules.json").read_bytes()))

    def losses(self) -> list[str]:
        """Return the losses of the steps as hex floats, of rank 0's micro-batches."""
        lines = [line for _, line in sorted(self.steps[0].items())]
        return [loss for line in lines for loss in line.get("loss", ())]

    def digest(self) -> str:
        """Return a digest of all that the steps read and compute, without names of parameters."""
        hashed = hashlib.sha256()
        for text in self._texts():
            hashed.update(f"{text}\n".encode())
        return hashed.hexdigest()[:16]

    def _texts(self) -> Iterator[str]:
        from launcher.proof.diff import lines_of  # late: torch

        for rank, lines in sorted(self.steps.items()):
            for step, line in sorted(lines.items()):
                values = {
                    kind: list(value.values()) if kind in ("gradients", "weights") else value
                    for kind, value in line.items()
                    if kind not in ("parts", "step")
                }
                yield json.dumps([rank, step, values], sort_keys=True)
        yield json.dumps([[rate.hex() for rate in row] for row in self.rates or ()])
        for step, line in sorted(lines_of(self.folder, 0, self.end).items()):
            yield repr([step, sorted(line.items())])


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
    options = code.options(preset.config_dir)
    request = {
        "overrides": preset.typed(),
        "config_dir": None if options is None else str(options),
        "steps": steps,
        "longest": preset.steps,
        "root": str(root),
        "label": preset.name,
        "hook": {"_target_": HOOK, "keep": keep},
    }
    if preset.function is not None:
        file, name = preset.function
        request["function"] = [str(code.root / file), name]
    (root / "request.json").write_text(json.dumps(request))
    log = root / "log"
    code_of_end = _run([str(root / "request.json")], log, code)
    if code_of_end:
        raise NotTrained(_reason(code_of_end, log), code_of_end == REJECTED)
    if preset.function is not None:
        run = RunFolder(root / "run")
        return Side(run, root / "trace", code, {}, run.newest_step())
    (record,) = (root / "outputs").glob("*/*/run.json")
    run = RunFolder(record.parent)
    config = yaml.safe_load((root / "job.yaml").read_text())["config"]
    return Side(run, root / "trace", code, config, run.newest_step())


def _run(arguments: Sequence[str], log: Path, code: Code) -> int:
    """Run `guard_job` in the working folder with the code of a side; return its exit code."""
    env = without_job(code.environment())
    process = start_child([sys.executable, guard_job.__file__, *arguments], log, env)
    _running.add(process)
    if _stopped.is_set():
        process.terminate()
    try:
        return wait_for_process(process)
    finally:
        _running.discard(process)
        process.terminate()
        process.wait()


_running: set[subprocess.Popen[Any]] = set()
"""The trainings of this process, of all of its threads."""
_stopped = threading.Event()


def stop_all() -> None:
    """Stop the trainings that other threads wait for, and those that they are about to start."""
    _stopped.set()
    for process in list(_running):
        process.terminate()


def _reason(code: int, log: Path) -> str:
    lines = last_lines(log, LAST_LINES)
    if code == REJECTED:
        return " ".join(line for line in lines if not LOG_PREFIX.match(line))
    return f"{describe_end(code)}: {lines[-1] if lines else 'without a word'}"
