"""SLURM's commands as shell scripts that answer from files: for requeue logic where no cluster can run.

What a real cluster answers is in `tests/unit/slurm/scontrol.txt`; `tests/end_to_end/slurm` runs on one.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from time import localtime, strftime, time

import pytest

from support.paths import TESTS

ANSWERS = dict(
    block.split("\n", 1) for block in (TESTS / "unit" / "slurm" / "scontrol.txt").read_text().split("## ")[1:]
)
"""Lines of `scontrol show job -o` by what had happened to the job."""

SCONTROL = """#!/bin/sh
echo "$@" >> "{folder}/calls"
case "$1" in
show)
    [ ! -e "{folder}/down" ] || {{ echo "Unable to contact slurm controller" >&2; exit 1; }}
    [ "$2" = job ] || {{ cat "{folder}/config"; exit; }}
    number=$(ls "{folder}" | grep -c '^job-')
    asked=$(grep -c '^show job' "{folder}/calls")
    [ "$asked" -le "$number" ] || asked=$number
    cat "{folder}/job-$asked" ;;
requeue)
    [ ! -e "{folder}/refusal" ] || {{ cat "{folder}/refusal" >&2; exit 1; }}
    rm "{folder}"/job-*
    cp "{folder}/requeued" "{folder}/job-1" ;;
esac
"""


@dataclass
class ScriptedSlurm:
    """Answers of `scontrol`: one after the other for `show job`, the last one from then on."""

    folder: Path

    def install(self, patch: pytest.MonkeyPatch, restarts: int = 0) -> None:
        """Put the commands on PATH, and this process into job 6 as its only task."""
        (self.folder / "bin").mkdir(parents=True)
        command = self.folder / "bin" / "scontrol"
        command.write_text(SCONTROL.format(folder=self.folder))
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        self.answer("killed by hand")
        (self.folder / "config").write_text("KillWait                = 30 sec\n")
        (self.folder / "requeued").write_text(ANSWERS["preempted without a grace, REQUEUE"])
        variables = {"SLURM_JOB_ID": "6", "SLURM_JOB_NODELIST": "node1", "SLURM_RESTART_COUNT": str(restarts)}
        for name, value in {**variables, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}.items():
            patch.setenv(name, value)
        for name in ("RANK", "WORLD_SIZE"):
            patch.delenv(name, raising=False)

    def answer(self, *names: str) -> None:
        for path in self.folder.glob("job-*"):
            path.unlink()
        (self.folder / "calls").write_text("")
        for number, name in enumerate(names, 1):
            (self.folder / f"job-{number}").write_text(ANSWERS[name])

    def requeue_as(self, name: str, restarts: int = 1) -> None:
        """What `scontrol show job` says after a requeue."""
        (self.folder / "requeued").write_text(ANSWERS[name].replace("Restarts=1", f"Restarts={restarts}"))

    def refuse(self, text: str) -> None:
        """Let `scontrol requeue` fail."""
        (self.folder / "refusal").write_text(text)

    def stop_answering(self) -> None:
        (self.folder / "down").touch()

    def answer_again(self) -> None:
        """The controller starts anew, and remembers no preemption."""
        (self.folder / "down").unlink()
        (self.folder / "config").write_text(
            f"BOOT_TIME               = {strftime('%Y-%m-%dT%H:%M:%S', localtime(time() + 2))}\n"
        )

    @property
    def calls(self) -> list[str]:
        return [line.split(" -o")[0] for line in (self.folder / "calls").read_text().splitlines()]
