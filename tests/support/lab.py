"""A real SLURM cluster on this machine (`slurm/lab/`), and its jobs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from launcher.rundir.folder import RunFolder
from launcher.rundir.record_format import AttemptData, RecordData, read_record
from launcher.slurm.submission import Submission
from support import python, waiting
from support.paths import PYTHONPATH, ROOT

SCRIPTS = ROOT / "slurm" / "lab"
REQUIRED = os.environ.get("LAUNCHER_REQUIRE_SLURM") == "1"
MAX_WAIT_S = 600.0
"""Seconds after which every wait ends: many times what is needed, since other tests keep the
machine busy."""
STEPS, INTERVAL = 120, 10
"""Steps of a run, and steps between two of its checkpoints."""
PATIENT = {"MESSAGE_TIMEOUT": "5", "GRACE": "20", "KILLWAIT": "15"}
"""Settings that give a run the time to save on a busy machine."""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL")
QUICK = ["tracker.pace.seconds=0"]
"""Overrides of `experiment`, for a run that nothing disturbs."""


def impossible() -> str | None:
    """The reason why no cluster can be started here, or None. SLURM is installed only if it is
    required."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a private SLURM cluster needs Linux and root"
    if shutil.which("slurmctld") is None and not REQUIRED:
        return "SLURM is not installed; LAUNCHER_REQUIRE_SLURM=1 installs it, as slurm/lab/up.sh"
    if shutil.which("apt-get") is None and shutil.which("slurmctld") is None:
        return "SLURM is not installed, and there is no apt-get to install it"
    own = ["unshare", "--mount", "--uts", "--pid", "--fork", "true"]
    if subprocess.run(own, capture_output=True).returncode != 0:
        return "each node of the cluster needs its own namespace, which cannot be created here"
    return None


@dataclass
class Lab:
    """One cluster.

    Args:
        state: its folder.
        port: the first of its ports.
        settings: variables of `up.sh`, without their `SLURM_LAB_`.
    """

    state: Path
    port: int
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """With this a command finds this cluster and the tests' hooks."""
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SLURM_", "SBATCH_"))
        }
        return {
            **clean,
            **{f"SLURM_LAB_{key}": value for key, value in self.settings.items()},
            "SLURM_LAB_STATE": str(self.state),
            "SLURM_LAB_PORT": str(self.port),
            "SLURM_CONF": str(self.state / "etc" / "slurm.conf"),
            "PYTHONPATH": PYTHONPATH,
            "OMP_NUM_THREADS": "1",
            "LAUNCHER_TESTS_PYTHON": str(self.python),
            "PATH": os.pathsep.join(
                [str(self.python.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
        }

    @property
    def python(self) -> Path:
        """The interpreter of jobs: an import of torch would be most of what they do."""
        return self.state.parent / "python"

    def start(self) -> None:
        python.command(self.python.parent)
        self.run(str(SCRIPTS / "up.sh"), "--fresh")

    def stop(self) -> None:
        self.run(str(SCRIPTS / "down.sh"))

    def run(self, *command: str, check: bool = True) -> str:
        """The output of a command on this cluster."""
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": MAX_WAIT_S}
        done = subprocess.run(command, env=self.environment, cwd=ROOT, **options)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def node(self, verb: str, name: str) -> None:
        self.run(str(SCRIPTS / "node.sh"), verb, name)

    def kill_controller(self) -> None:
        os.kill(int((self.state / "run" / "slurmctld.pid").read_text()), signal.SIGKILL)

    def wait_until_saved(self, job: str) -> None:
        """Until a controller that is killed would still know that the job runs: it writes its state
        seconds later."""
        state = self.state / "ctld" / "job_state"
        before = state.stat().st_mtime_ns
        self.run("scontrol", "update", f"jobid={job}", "comment=save")
        wait_for(lambda: state.stat().st_mtime_ns > before, "the controller to save its state")

    def start_controller(self) -> None:
        self.run("slurmctld")

    def launcher(
        self, *arguments: str, module: str = "launcher", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """`python -m launcher ...`, as a user of this cluster types it, with these environment
        variables."""
        return python.run(
            "-m", module, *arguments, env=self.environment | variables, cwd=ROOT, timeout=MAX_WAIT_S
        )

    def runs(
        self, verb: str, outputs: Path, *words: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """`python -m launcher.runs VERB ...`."""
        words = (verb, "--outputs", str(outputs), *words)
        return self.launcher(*words, module="launcher.runs", **variables)

    def begin(self, module: str, *arguments: str, **options: Any) -> Any:
        """Start `python -m MODULE ...`, to be waited for; options as for `python.start`."""
        options = {"env": self.environment, "cwd": ROOT, **options}
        return python.start("-m", module, *arguments, **options)

    def submit(self, outputs: Path, *overrides: str, **variables: str) -> str:
        """Submit runs of the small experiment; the id of the job, without an array's tasks."""
        done = self.launcher(*experiment(outputs), "dispatch=slurm", *overrides, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        match = re.search(r"as SLURM job (\d+)", done.stdout)
        assert match is not None, done.stdout
        return match[1]

    def preempt(self, node: str, seconds: int = 1) -> str:
        """Submit a job with a higher priority that needs a whole node for some seconds; its id."""
        wanted = f"--parsable -p main -w {node} --exclusive -o /dev/null"
        return self.run("sbatch", *wanted.split(), "--wrap", f"sleep {seconds}").strip()

    def info(self, job: str) -> dict[str, str]:
        text = self.run("scontrol", "show", "job", "-o", job)
        return dict(word.partition("=")[::2] for word in text.splitlines()[0].split())

    def state_of(self, node: str) -> str:
        return self.run("sinfo", "--noheader", "-n", node, "-o", "%T").splitlines()[0].upper()

    def wait_until_ended(self, job: str) -> str:
        """The job's last state; a requeued job has not ended."""
        wait_for(lambda: self.info(job)["JobState"] in ENDED, f"job {job} to end", pause=1.0)
        return self.info(job)["JobState"]


wait_for = partial(waiting.wait_for, seconds=MAX_WAIT_S, pause=0.3)


def experiment(outputs: Path, steps: int = STEPS) -> list[str]:
    """The overrides of a small run. With the pacer it takes a minute in its job's first start."""
    return [
        "model=mlp",
        "data=digits",
        "model.hidden_dim=16",
        f"trainer.max_steps={steps}",
        f"hooks.checkpointing.interval={INTERVAL}",
        "hooks.logging.interval=1",
        "+tracker.pace._target_=support.pacer.Pacer",
        "+tracker.pace.seconds=0.5",
        f"paths.outputs={outputs}",
    ]


def states(lab: Lab, outputs: Path, *words: str) -> dict[str, Any]:
    """`python -m launcher.runs list --json`: id -> summary."""
    done = lab.runs("list", outputs, "--json", *words)
    assert done.returncode == 0, done.stderr
    return {run["id"]: run for run in json.loads(done.stdout)}


def steps_done(folder: Path) -> int:
    """The last step in a run's metrics.jsonl."""
    try:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return int(json.loads(lines[-1])["step"])
    except (OSError, ValueError, IndexError):
        return 0


def job_of(folder: Path) -> str:
    """The SLURM job of a submitted run."""
    submission = Submission.read(RunFolder(folder))
    assert submission is not None and submission.job_id is not None
    return submission.job_id


def run_folders(outputs: Path) -> list[Path]:
    return sorted(path.parent for path in outputs.glob("*/*/run.json"))


def record_of(folder: Path) -> RecordData:
    return read_record(folder / "run.json")


def attempts_of(folder: Path) -> list[AttemptData]:
    return record_of(folder)["attempts"]


def hurry(*folders: Path) -> None:
    """Let runs take only the time that they need from now on."""
    for folder in folders:
        (folder / "hurry").touch()


def wait_for_step(outputs: Path, step: int = 4, runs: int = 1, failed: bool = False) -> None:
    """Wait until so many runs have reached a step; unless `failed`, none may fail before."""

    def have_reached_it() -> bool:
        folders = run_folders(outputs)
        for folder in folders:
            if record_of(folder)["state"] == "failed" and not failed:
                logs = "".join(path.read_text()[-3000:] for path in folder.glob("logs/*"))
                raise AssertionError(f"{folder} failed before step {step}:\n{logs}")
        return sum(steps_done(folder) >= step for folder in folders) >= runs

    wait_for(have_reached_it, f"step {step} in {outputs}")
