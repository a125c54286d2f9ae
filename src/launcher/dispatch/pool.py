"""Several jobs at a time on this machine, each as a process with a share of the GPUs."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.config.run_config import RunConfig
from launcher.process import signals
from launcher.process.gpus import count_gpus
from launcher.process.visible import VISIBLE, visible_devices

COMMAND = (sys.executable, "-m", "launcher.cli.job")
PAUSE = 0.05
"""Seconds between two checks of processes that must end."""


class Pool:
    """Processes of this machine, one for each job, which save and end with the command.

    Args:
        folder: gets a file and a log for each job.
        slots: number of jobs at a time. The GPUs are divided among them.
        noun: first part of the names of those files.
    """

    def __init__(self, folder: Path, slots: int, noun: str = "job"):
        self.folder, self.noun = folder, noun
        self.gpus = devices(os.environ, count_gpus()) if slots > 1 else []
        self.slots: list[int | None] = [None] * slots
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int, config: RunConfig) -> None:
        """Start a job in a free slot."""
        file, log = self.folder / "jobs" / f"{self._name(number)}.yaml", self._log(number)
        for path in (file, log):
            path.parent.mkdir(exist_ok=True)
        config.save(file)
        self._launch(number, [*COMMAND, str(file), *self._results(number)], log)

    def _launch(self, number: int, command: Sequence[str], log: Path) -> None:
        slot = self.slots.index(None)
        self.slots[slot] = number
        env = {**os.environ, "LAUNCHER_PARENT": str(os.getpid()), **self._share(slot)}
        # A signal that comes before the process has its handlers waits until then.
        with open(log, "ab") as output, signals.blocked():
            self.processes[number] = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _results(self, number: int) -> list[str]:
        """Return the file that gets the job's result, if the run's folder does not have it."""
        return []

    def _share(self, slot: int) -> dict[str, str]:
        share = gpu_share(self.gpus, slot, len(self.slots))
        return {VISIBLE: ",".join(share)} if share else {}

    def running(self) -> set[int]:
        """Return the jobs that were started and that `ended` has not returned."""
        return set(self.processes)

    def ended(self) -> dict[int, int]:
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
            codes |= self.ended()
            time.sleep(PAUSE)
        return codes

    def why(self, number: int, code: int) -> str:
        """Explain a rejected (2) or failed job by its last line, if its run has no reason."""
        if code < 0:
            return f"was killed by signal {-code}"
        lines = [line for line in self.last_lines(number) if line.strip()]
        if code == 2:
            return lines[-1] if lines else "rejected"
        return f"exit code {code}{f': {lines[-1]}' if lines else ''}"

    def last_lines(self, number: int) -> list[str]:
        """The last lines that a job has printed."""
        try:
            return self._log(number).read_text(errors="replace").splitlines()[-20:]
        except OSError:
            return []

    def _name(self, number: int) -> str:
        return f"{self.noun}-{number:04d}"

    def _log(self, number: int) -> Path:
        return self.folder / "logs" / f"{self._name(number)}.log"


def devices(env: Mapping[str, str], count: int) -> list[str]:
    return (visible_devices(env) or list(map(str, range(count))))[:count]


def gpu_share(gpus: Sequence[str], slot: int, slots: int) -> list[str]:
    """Return the GPUs of one slot. If there are fewer GPUs than slots, several share one."""
    if not gpus:
        return []
    count = len(gpus) // slots
    return list(gpus[slot * count : (slot + 1) * count]) if count else [gpus[slot % len(gpus)]]
