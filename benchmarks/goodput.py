"""Goodput under preemption.

A sweep of four runs is on a partition that is preempted every few seconds.

    python benchmarks/goodput.py [--every 20] [--steps 400] [--pace 0.05] [--grace 12]

It starts a real cluster of its own (slurm/lab/: root, Debian or Ubuntu) and runs the sweep with
this launcher and with hydra-submitit-launcher and trainloop's hook (pip install
hydra-submitit-launcher trainloop scikit-learn), each undisturbed first, to know the weights, and
then preempted in the same rhythm: a job of a higher partition takes each node for a second.

    steps lost     computed, and computed again later, since no checkpoint had them
    useful share   of the steps computed, those that did not have to be computed again
    goodput        time that the undisturbed steps take, in the time from submission to the end
                   of the last run
    weights        runs that end with the weights of the undisturbed run, bit-exact
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LAB = HERE.parent / "slurm" / "lab"
RUNS = 4
NOT_COMPLETED = "not completed"


@dataclass
class Outcome:
    """The outcome of one sweep."""

    seconds: float
    computed: int
    preemptions: int
    weights: list[str]


class Bench:
    """A cluster with a node for each run, and the two ways to run the sweep on it."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.root = Path(tempfile.mkdtemp(prefix="goodput-"))
        self.root.chmod(0o755)
        port = 20000 + os.getpid() % 100 * 100
        self.lab = {
            "SLURM_LAB_STATE": str(self.root / "lab"),
            "SLURM_LAB_PORT": str(port),
            "SLURM_LAB_NODES": str(RUNS),
            "SLURM_LAB_GRACE": str(arguments.grace),
            "SLURM_LAB_MESSAGE_TIMEOUT": "5",
        }
        self.environment = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("SLURM_", "SBATCH_"))
            },
            "SLURM_CONF": str(self.root / "lab" / "etc" / "slurm.conf"),
            "PYTHONPATH": str(HERE),
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> "Bench":
        subprocess.run(
            [LAB / "up.sh", "--fresh"],
            env=self.environment | self.lab,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(
            [LAB / "down.sh"], env=self.environment | self.lab, stdout=subprocess.DEVNULL
        )
        shutil.rmtree(self.root, ignore_errors=True)

    def ours(self, outputs: Path) -> tuple[list[str], Callable[[], list[str]]]:
        arguments = self.arguments
        command = [
            *(sys.executable, "-m", "launcher", "model=mlp", "data=digits", "model.hidden_dim=16"),
            *(
                f"trainer.max_steps={arguments.steps}",
                f"hooks.checkpointing.interval={arguments.interval}",
            ),
            *(
                "+tracker.pace._target_=goodput_pace.Pace",
                f"+tracker.pace.seconds={arguments.pace}",
            ),
            *(
                f"paths.outputs={outputs}",
                "dispatch=slurm",
                "dispatch.partition=preempt",
                "dispatch.wait=true",
            ),
            *(
                "dispatch.max_fruitless_restarts=null",
                "+dispatch.sbatch.exclusive=true",
                "-m",
                "seed=0,1,2,3",
            ),
        ]
        return command, lambda: self._digests(outputs)

    def peer(self, outputs: Path) -> tuple[list[str], Callable[[], list[str]]]:
        arguments = self.arguments
        command = [
            *(sys.executable, str(HERE / "goodput_peer.py"), "-m", "hydra/launcher=submitit_slurm"),
            *(
                f"hydra.sweep.dir={outputs}/hydra",
                "hydra.launcher.partition=preempt",
                "hydra.launcher.timeout_min=120",
            ),
            *(
                "+hydra.launcher.additional_parameters={exclusive: true}",
                "hydra.launcher.signal_delay_s=60",
            ),
            *(
                f"+steps={arguments.steps}",
                f"+interval={arguments.interval}",
                f"+pace={arguments.pace}",
                "+signal=SIGUSR2",
            ),
            *(f"+outputs={outputs}", "+seed=0,1,2,3"),
        ]
        return command, lambda: self._peer_digests(
            [outputs / f"seed-{seed}" for seed in range(RUNS)]
        )

    def _digests(self, outputs: Path) -> list[str]:
        command = [
            *(sys.executable, "-m", "launcher.runs", "--outputs", str(outputs)),
            *("checkpoints", "--digest", "--at", "latest"),
        ]
        printed = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        ).stdout
        lines = [line.split() for line in printed.splitlines()]
        return [digest for digest, _ in sorted(lines, key=lambda line: line[1])]

    def _peer_digests(self, folders: list[Path]) -> list[str]:
        import hashlib

        import torch

        def digest(path: Path) -> str:
            if not path.exists():
                return NOT_COMPLETED
            tensors = torch.load(path)
            return hashlib.sha256(
                b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))
            ).hexdigest()

        return [digest(folder / "final.pt") for folder in folders]

    def _jobs(self) -> str:
        command = ["squeue", "--noheader", "--me", "--partition=preempt"]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def sweep(
        self, way: Callable[[Path], tuple[list[str], Callable[[], list[str]]]], every: float | None
    ) -> Outcome:
        """Run the sweep, preempting each node every `pause` seconds, or never if it is None."""
        outputs = Path(tempfile.mkdtemp(dir=self.root))
        command, weights = way(outputs)
        over, count = threading.Event(), 0

        def disturb() -> None:
            nonlocal count
            while every is not None and not over.wait(every):
                for node in range(1, RUNS + 1):
                    wanted = [
                        "-p",
                        "main",
                        "-w",
                        f"node{node}",
                        "--exclusive",
                        "-o",
                        "/dev/null",
                        "-t",
                        "1",
                    ]
                    subprocess.run(
                        ["sbatch", *wanted, "--wrap", "sleep 1"],
                        env=self.environment,
                        stdout=subprocess.DEVNULL,
                    )
                    count += 1

        thread = threading.Thread(target=disturb)
        started = time.monotonic()
        thread.start()
        try:
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, timeout=1800
            )
            while self._jobs():  # it may have given up a job that SLURM still runs
                time.sleep(1)
        finally:
            over.set()
            thread.join()
        seconds = time.monotonic() - started
        if done.returncode != 0:
            print(
                f"exit code {done.returncode}: {' '.join(done.stderr.split())[-400:]}",
                file=sys.stderr,
            )
        subprocess.run(["scancel", "--me", "--partition=main"], env=self.environment)
        notes = [path.read_text().splitlines() for path in outputs.glob("**/steps.txt")]
        return Outcome(seconds, sum(map(len, notes)), count, weights())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--every", type=float, default=20.0, help="seconds between two preemptions of a node"
    )
    parser.add_argument("--steps", type=int, default=400, help="of each run")
    parser.add_argument("--pace", type=float, default=0.05, help="seconds that a step takes")
    parser.add_argument("--interval", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument("--grace", type=int, default=12, help="GraceTime of the partition, seconds")
    arguments = parser.parse_args()
    # The cluster is to be stopped in any case.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    useful = RUNS * arguments.steps
    print(
        f"{RUNS} runs of {arguments.steps} steps of {arguments.pace} s; preempted every"
        f" {arguments.every:g} s"
    )
    print(
        f"{'':45}{'seconds':>9}{'preempted':>11}{'steps lost':>12}{'useful share':>14}"
        f"{'goodput':>9}{'weights':>9}"
    )
    with Bench(arguments) as bench:
        for name, way in (
            ("launcher", bench.ours),
            ("hydra-submitit + trainloop's hook", bench.peer),
        ):
            calm = None
            for what, every in (("", None), (", preempted", arguments.every)):
                outcome = bench.sweep(way, every)
                if missing := outcome.weights.count(NOT_COMPLETED):
                    print(f"{name + what}: {missing} of {RUNS} runs were not completed", flush=True)
                    break
                calm = calm or outcome
                same = sum(a == b for a, b in zip(outcome.weights, calm.weights, strict=True))
                goodput = arguments.steps * arguments.pace / outcome.seconds
                print(
                    f"{name + what:45}{outcome.seconds:9.1f}{outcome.preemptions:11}"
                    f"{outcome.computed - useful:12}"
                    f"{useful / max(1, outcome.computed):14.1%}{goodput:9.1%}{same:7}/{RUNS}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
