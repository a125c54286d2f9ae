"""dispatch=slurm: freeze the configuration, submit, and return; or wait for the results."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from launcher.config.resolve import plain_hydra, resolve
from launcher.dispatch.submitted import Run, report, result
from launcher.errors import ConfigError
from launcher.run.folder import RunFolder
from launcher.slurm import scheduler, snapshot, submission
from launcher.slurm.sbatch import Script, findings, import_submitit, seconds
from launcher.types import NonNegativeInt, PositiveInt

WRITERS = 8
"""So many runs' folders are written at once."""


class Job(Protocol):
    """One job of a sweep, see `launcher.cli.sweep.SweepJob`."""

    overrides: list[str]
    plain: dict[str, Any]
    hydra: dict[str, Any]

    @property
    def label(self) -> str: ...


class SlurmDispatch:
    """Each run is a job of its own, a sweep an array. A job that SLURM preempts, times out or requeues goes on with its
    run from the checkpoint it saves then (see `launcher.slurm.requeue`).

    Args:
        nodes: machines of one run.
        gpus_per_node: 0: none, the run is on CPUs.
        tasks_per_node: ranks on each node; null: one for each GPU, one without GPUs.
        cpus_per_task: null: what the cluster gives by default.
        mem: of a node, e.g. 32G; null: the cluster's default.
        time: limit of one start, in minutes or as 1-12:00:00; null: the partition's. A longer run is requeued.
        partition, account, qos, constraint, exclude: as in sbatch; null: the cluster's default.
        array_parallelism: so many runs of a sweep at once; null: as many as the cluster lets run.
        signal_delay: seconds before the time limit at which the run saves and requeues itself.
        setup: lines of shell before the run starts.
        modules: environment modules to load before it starts.
        container: image in which the run starts; null: none.
        container_runtime: pyxis (srun --container-image) or apptainer.
        container_mounts: folders to be seen inside, as HOST:INSIDE.
        interface: network interface for NCCL and gloo, e.g. ib0; null: they choose.
        sbatch: further flags of sbatch by their long names, e.g. {nodelist: n1}.
        srun: further flags of srun, e.g. [--cpu-bind=cores].
        max_preemptions: requeues after a preemption; null: without bound.
        max_timeouts: requeues at the time limit; null: without bound.
        max_fruitless_restarts: restarts in a row without a newer checkpoint, after which the run fails.
        wait: stay until all runs have ended, and return their metrics.
        dry_run: print the script and what looks wrong with it; submit nothing.
        snapshot: run a copy of the code as it is now; edits afterwards do not reach queued or requeued runs.
        python: interpreter on the nodes; null: this one.
    """

    submits = True
    """Hands runs to others: what guards a job's end is for those."""

    def __init__(
        self,
        nodes: PositiveInt = 1,
        gpus_per_node: NonNegativeInt = 0,
        tasks_per_node: PositiveInt | None = None,
        cpus_per_task: PositiveInt | None = None,
        mem: str | None = None,
        time: PositiveInt | str | None = None,
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        exclude: str | None = None,
        array_parallelism: PositiveInt | None = None,
        signal_delay: PositiveInt = 120,
        setup: list[str] | None = None,
        modules: list[str] | None = None,
        container: str | None = None,
        container_runtime: Literal["pyxis", "apptainer"] = "pyxis",
        container_mounts: list[str] | None = None,
        interface: str | None = None,
        sbatch: dict[str, Any] | None = None,
        srun: list[str] | None = None,
        max_preemptions: NonNegativeInt | None = None,
        max_timeouts: NonNegativeInt | None = None,
        max_fruitless_restarts: NonNegativeInt | None = 3,
        wait: bool = False,
        dry_run: bool = False,
        snapshot: bool = False,
        python: str | None = None,
    ):
        if isinstance(time, str) and seconds(time) is None:
            raise ConfigError(
                f"dispatch.time='{time}': should be minutes or SLURM's notation; e.g. dispatch.time=1-12:00:00."
            )
        self.nodes, self.tasks_per_node = nodes, tasks_per_node or gpus_per_node or 1
        self.array_parallelism, self.interface = array_parallelism, interface
        self.setup, self.modules = list(setup or []), list(modules or [])
        self.wait, self.dry_run, self.snapshot, self.python = wait, dry_run, snapshot, python
        self.flags: dict[str, Any] = {
            "nodes": nodes,
            "ntasks-per-node": self.tasks_per_node,
            "gpus-per-node": gpus_per_node or None,
            "cpus-per-task": cpus_per_task,
            "mem": mem,
            "time": time,
            "partition": partition,
            "account": account,
            "qos": qos,
            "constraint": constraint,
            "exclude": exclude,
            "signal": f"USR2@{signal_delay}",
            "requeue": True,
            **(sbatch or {}),
        }
        # Since SLURM 22.05 srun no longer takes this over from sbatch.
        self.srun = [f"--cpus-per-task={cpus_per_task}"] if cpus_per_task else []
        self.prefix: list[str] = []
        mounts = ",".join(container_mounts or [])
        if container is not None and container_runtime == "pyxis":
            self.srun += [f"--container-image={container}", *([f"--container-mounts={mounts}"] if mounts else [])]
        elif container is not None:
            gpus = ["--nv"] if gpus_per_node else []
            self.prefix = ["apptainer", "exec", *gpus, *(["--bind", mounts] if mounts else []), container]
        self.srun += list(srun or [])

    def run(self, config: DictConfig) -> Any:
        """Submit one run. The newest value of each of its metrics with `wait`, else None.

        Raises:
            ConfigError: it cannot be submitted.
            SystemExit: it was waited for, and did not complete.
        """
        hydra = plain_hydra(HydraConfig.get()) if HydraConfig.initialized() else None  # type: ignore[arg-type]
        plain, _ = resolve(config)
        (result,) = self._submit([Run(f"{config.run.name}/{config.run.id}", plain, hydra)])
        if result.status == JobStatus.FAILED:
            raise SystemExit(1)
        return result.return_value

    def sweep(self, jobs: Sequence[Job], task: Any) -> Sequence[JobReturn]:
        """Submit the runs of a sweep as arrays: those that are completed, running or queued are left alone.

        Returns:
            One result a job, in their order. Without `wait` a result is None, since none is known.
        Raises:
            ConfigError: they cannot be submitted.
        """
        return self._submit([Run(job.label, job.plain, job.hydra, job.overrides) for job in jobs])

    def again(self, folders: Sequence[RunFolder]) -> None:
        """Submit runs that were submitted before, as they were frozen then.

        Raises:
            ConfigError: they cannot be submitted.
        """
        saved = [submission.frozen(folder) for folder in folders]
        self._submit([Run(f"{one['run']['name']}/{one['run']['id']}", one, hydra) for one, hydra in saved])

    def _submit(self, runs: list[Run]) -> list[JobReturn]:
        import_submitit()
        if "RANK" in os.environ:
            raise ConfigError(
                "dispatch=slurm: this process is a rank of a job already; take dispatch=local inside of one."
            )
        queue = scheduler.queue()
        if queue is None:
            raise ConfigError("dispatch=slurm: squeue gives no answer here; is this a machine of the cluster?")
        for run in runs:
            run.skipped = submission.standing(run.folder, queue)
            if run.skipped is not None:
                run.job_id = submission.ticket(run.folder).get("job_id")
        due = [run for run in runs if run.skipped is None]
        if self.dry_run:
            self._show(due or runs)
            return [result(run, JobStatus.COMPLETED, None) for run in runs]
        if due:
            self._hand_over(due)
        report(runs, due)
        if not self.wait:
            return [result(run, JobStatus.COMPLETED, None) for run in runs]
        from launcher.dispatch.waiting import wait_for  # late: who does not wait needs no tables

        return wait_for(runs)

    def _hand_over(self, due: list[Run]) -> None:
        folder = submission.new_submission(due[0].outputs)
        with submission.provisional([run.folder for run in due], folder) as settled:
            script = self._script(due[0], snapshot.take(folder) if self.snapshot else [])
            with ThreadPoolExecutor(WRITERS) as pool:  # a shared file system takes its time for each
                list(pool.map(lambda run: submission.freeze(run.config, run.hydra), due))
            for part, chunk in enumerate(self._chunks(due)):
                folders = [run.folder for run in chunk]
                path = submission.write_runs(folder, folders, part)
                count = len(chunk) if len(due) > 1 else None
                job, text = script.submit(folder, path, count, self._share(len(chunk), len(due)))
                settled += folders
                tickets = submission.write_tickets(folders, job, len(due) > 1, text)
                for run, one in zip(chunk, tickets, strict=True):
                    run.job_id = one

    def _chunks(self, due: list[Run]) -> Iterator[list[Run]]:
        """An array's index must stay below MaxArraySize."""
        most = 1000
        if len(due) > 1:
            most = max(1, int(scheduler.config_values("MaxArraySize").get("MaxArraySize", 1001)) - 1)
        for start in range(0, len(due), most):
            yield due[start : start + most]

    def _share(self, count: int, total: int) -> int | None:
        """An array's part of `array_parallelism`."""
        return None if self.array_parallelism is None else max(1, self.array_parallelism * count // total)

    def _script(self, run: Run, setup: list[str]) -> Script:
        network = (
            [f"export NCCL_SOCKET_IFNAME={self.interface} GLOO_SOCKET_IFNAME={self.interface}"]
            if self.interface
            else []
        )
        modules = [f"module load {' '.join(self.modules)}"] if self.modules else []
        script = Script(
            str(run.config["run"]["name"]),
            self.flags,
            self.srun,
            self.prefix,
            [*modules, *self.setup, *network, *setup],
        )
        if self.python is not None:
            script.python = self.python
        return script

    def _show(self, runs: list[Run]) -> None:
        script = self._script(runs[0], [])
        folder = runs[0].outputs.absolute() / ".slurm" / "<submission>"
        count = min(len(runs), 1000) if len(runs) > 1 else None
        text = script.text(folder, folder / submission.RUNS, count, self._share(len(runs), len(runs)))
        print(text, flush=True)
        newest = runs[0].folder.checkpoints / "latest"
        size = sum(file.stat().st_size for file in newest.iterdir()) if newest.is_dir() else None
        wrong = list(findings(script, text, size))
        print(
            "\n".join(f"! {sentence}" for sentence in wrong) if wrong else "# Nothing looks wrong with it.", flush=True
        )
