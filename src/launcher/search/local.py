"""Trials as processes of this machine. When the search ends, they save and end too."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from omegaconf import OmegaConf

from launcher.config.resolve import escaped
from launcher.dispatch.gpus import count_gpus

COMMAND = (sys.executable, "-m", "launcher.search.trial")
CANCELLED = 256
"""Stands for an exit code: somebody cancelled the trial during the search."""


class Runner(Protocol):
    """Interface of what trains trials."""

    @property
    def poll(self) -> float:
        """Seconds between two checks of the trials."""
        ...

    def adopt(self, runs: Mapping[int, str]) -> None: ...
    def start(self, number: int, config: dict[str, Any], hydra: dict[str, Any]) -> None: ...
    def describe_start(self, step: int) -> str: ...
    def flush(self) -> None: ...
    def running(self) -> set[int]: ...
    def ended(self) -> dict[int, int]: ...
    def phase(self, number: int) -> str: ...
    def why(self, number: int, code: int) -> str: ...
    def stop(self, numbers: Sequence[int]) -> None: ...
    def close(self) -> None: ...


class LocalRunner:
    """
    Args:
        folder: the study's; gets a file and a log for each trial.
        slots: number of trials at a time. The GPUs are divided among them.
    """

    poll = 0.3

    def __init__(self, folder: Path, slots: int):
        self.folder = folder
        self.gpus = devices(os.environ, count_gpus()) if slots > 1 else []
        self.slots: list[int | None] = [None] * slots
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def adopt(self, runs: Mapping[int, str]) -> None:
        """Does nothing: local trials end with their search."""

    def start(self, number: int, config: dict[str, Any], hydra: dict[str, Any]) -> None:
        file, log = self.folder / "jobs" / f"trial-{number:04d}.yaml", self._log(number)
        for path in (file, log):
            path.parent.mkdir(exist_ok=True)
        OmegaConf.save(OmegaConf.create({"config": escaped(config), "hydra": hydra}), file)
        slot = self.slots.index(None)
        self.slots[slot] = number
        env = {**os.environ, "LAUNCHER_PARENT": str(os.getpid()), **self._share(slot)}
        with open(log, "ab") as output:
            self.processes[number] = subprocess.Popen(
                [*COMMAND, str(file)], env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def describe_start(self, step: int) -> str:
        return f"resumes at step {step}" if step else "starts"

    def flush(self) -> None:
        """Does nothing: `start` has started them."""

    def _share(self, slot: int) -> dict[str, str]:
        share = gpu_share(self.gpus, slot, len(self.slots))
        return {"CUDA_VISIBLE_DEVICES": ",".join(share)} if share else {}

    def running(self) -> set[int]:
        """The trials that were started and that `ended` has not returned."""
        return set(self.processes)

    def ended(self) -> dict[int, int]:
        """The exit codes of the trials that have ended since the last call; negative for a signal that killed one."""
        codes = {number: process.poll() for number, process in self.processes.items()}
        ended = {number: code for number, code in codes.items() if code is not None}
        for number in ended:
            del self.processes[number]
            self.slots[self.slots.index(number)] = None
        return ended

    def phase(self, number: int) -> str:
        """State of a running trial."""
        return "running"

    def stop(self, numbers: Sequence[int]) -> None:
        """Let trials save and end."""
        for number in numbers:
            self.processes[number].terminate()

    def close(self) -> None:
        """Let all trials save and end, and wait for them."""
        self.stop(sorted(self.running()))
        while self.running():
            self.ended()
            time.sleep(0.05)

    def why(self, number: int, code: int) -> str:
        """Why a trial was rejected (2) or failed, where its run has no reason: the last line that it printed."""
        if code < 0:
            return f"was killed by signal {-code}"
        lines = [line for line in self._last_lines(number) if line.strip()]
        if code == 2:
            return lines[-1] if lines else "rejected"
        return f"exit code {code}{f': {lines[-1]}' if lines else ''}"

    def _last_lines(self, number: int) -> list[str]:
        try:
            return self._log(number).read_text(errors="replace").splitlines()[-20:]
        except OSError:
            return []

    def _log(self, number: int) -> Path:
        return self.folder / "logs" / f"trial-{number:04d}.log"


def devices(env: Mapping[str, str], count: int) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if visible := env.get("CUDA_VISIBLE_DEVICES"):
        return [device.strip() for device in visible.split(",")][:count]
    return [str(number) for number in range(count)]


def gpu_share(gpus: Sequence[str], slot: int, slots: int) -> list[str]:
    """The GPUs of one slot. If there are fewer GPUs than slots, several slots share one."""
    if not gpus:
        return []
    each = len(gpus) // slots
    return list(gpus[slot * each : (slot + 1) * each]) if each else [gpus[slot % len(gpus)]]
