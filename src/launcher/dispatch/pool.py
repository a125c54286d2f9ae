"""Several jobs at a time on this machine, each as a process with a share of the GPUs."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.config.run_config import RunConfig
from launcher.dispatch.child_command import ENTRY
from launcher.dispatch.node_process import Child, Children, imports_for
from launcher.errors import REJECTED
from launcher.process.child import describe_end, last_lines
from launcher.process.gpus import VISIBLE, count_gpus, visible_devices

PAUSE = 0.05
"""Seconds between two checks of processes that must end."""


class Pool:
    """Processes of this machine, one for each job, which save and end with the command.

    Args:
        folder: gets a file, a log and a result for each job.
        slots: number of jobs at a time. The GPUs are divided among them.
        noun: first part of the names of those files.
    """

    def __init__(self, folder: Path, slots: int, noun: str = "job"):
        self.folder = folder
        self.noun = noun
        self.gpus = devices(os.environ, count_gpus()) if slots > 1 else []
        self.slots: list[int | None] = [None] * slots
        self.children = Children(ENTRY)
        self.processes: dict[int, Child] = {}

    def start(self, number: int, config: RunConfig) -> None:
        """Start a job in a free slot."""
        file = self._file(number, "jobs", "yaml")
        for path in (file, self.log(number)):
            path.parent.mkdir(exist_ok=True)
        config.save(file)
        slot = self.slots.index(None)
        arguments = ["job", str(file), str(self._file(number, "jobs", "json"))]
        self.processes[number] = self.children.start(
            arguments, self.log(number), self.environment(slot), imports_for(config.plain)
        )
        self.slots[slot] = number

    def environment(self, slot: int) -> dict[str, str]:
        share = gpu_share(self.gpus, slot, len(self.slots))
        return {**os.environ, **({VISIBLE: ",".join(share)} if share else {})}

    def running(self) -> set[int]:
        """Return the jobs that were started and that `reap` has not returned."""
        return set(self.processes)

    def reap(self) -> dict[int, int]:
        """Return exit codes of jobs that ended since the last call, negative for a signal."""
        codes = {number: process.poll() for number, process in self.processes.items()}
        ended = {number: code for number, code in codes.items() if code is not None}
        for number in ended:
            del self.processes[number]
            self.slots[self.slots.index(number)] = None
        return ended

    def stop(self, numbers: Sequence[int]) -> None:
        """Let jobs save and end."""
        for number in numbers:
            self.processes[number].terminate()

    def close(self) -> dict[int, int]:
        """Let all jobs save and end, wait for them, and return their exit codes."""
        self.stop(sorted(self.running()))
        codes: dict[int, int] = {}
        while self.running():
            codes |= self.reap()
            time.sleep(PAUSE)
        self.children.close()
        return codes

    def value(self, number: int) -> Any:
        """Read the result of a job, or None if it did not write one."""
        try:
            return json.loads(self._file(number, "jobs", "json").read_bytes())
        except (OSError, ValueError):
            return None

    def has_returned(self, number: int) -> bool:
        """Return whether a job has come to its end, which an exit code of 0 does not tell."""
        return self._file(number, "jobs", "json").exists()

    def why(self, number: int, code: int) -> str:
        """Explain a rejected (2) or failed job by its last line, if its run has no reason."""
        lines = [line for line in last_lines(self.log(number), 20) if line.strip()]
        if code == REJECTED and lines:
            return lines[-1]
        return describe_end(code) + (f": {lines[-1]}" if lines and code > 0 else "")

    def log(self, number: int) -> Path:
        return self._file(number, "logs", "log")

    def _file(self, number: int, folder: str, suffix: str) -> Path:
        return self.folder / folder / f"{self.noun}-{number:04d}.{suffix}"


def devices(env: Mapping[str, str], count: int) -> list[str]:
    return (visible_devices(env) or list(map(str, range(count))))[:count]


def gpu_share(gpus: Sequence[str], slot: int, slots: int) -> list[str]:
    """Return the GPUs of one slot. If there are fewer GPUs than slots, several share one."""
    if not gpus:
        return []
    count = len(gpus) // slots
    if count:
        return list(gpus[slot * count : (slot + 1) * count])
    return [gpus[slot % len(gpus)]]
