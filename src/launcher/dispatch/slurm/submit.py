"""`dispatch=slurm`, which freezes the configuration and submits, and may wait for the results."""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from launcher.config.run_config import RunConfig, from_stored
from launcher.dispatch.jobs import Job, JobResult
from launcher.dispatch.skip_reasons import why_skipped
from launcher.dispatch.slurm.settings import SlurmSettings
from launcher.dispatch.slurm.submitted_runs import report
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.process.process_id import RANK
from launcher.rundir.folder import RunFolder
from launcher.slurm import scheduler, snapshot, submission
from launcher.slurm.sbatch import Script, findings, test_only
from launcher.slurm.scheduler import QueuedJob
from launcher.slurm.submission import Submission

WRITERS = 8
"""Threads that write run folders."""


@dataclass
class SlurmDispatch(SlurmSettings):
    """A run is a job; a sweep is an array.

    A job that SLURM preempts, times out or requeues saves a checkpoint and resumes its run from
    there (see `launcher.slurm.requeue`).
    """

    submits: ClassVar[bool] = True
    """Runs start elsewhere, so `dispatch.job` does not guard the end of this process."""

    def run(self, config: RunConfig) -> Any:
        """Submit one run.

        Returns:
            The newest value of each of its metrics with `wait`, otherwise None.

        Raises:
            ConfigError: it cannot be submitted.
            SystemExit: it did not complete, with `wait`.
        """
        (result,) = self._submit([Job(config)])
        if result.error is not None:
            raise SystemExit(1)
        return result.value

    def sweep(self, jobs: Sequence[Job]) -> Sequence[JobResult]:
        """Submit the runs of a sweep as arrays.

        Runs that are completed, running or queued are skipped.

        Returns:
            One result per job, in order; without `wait` each is None.
        Raises:
            ConfigError: they cannot be submitted.
        """
        return self._submit(list(jobs))

    def resubmit(
        self, folders: Sequence[RunFolder], snapshot: Path | None, dispatch: Mapping[str, object]
    ) -> None:
        """Submit runs again, with the configuration and code of their first submission.

        The settings of this dispatch replace the frozen ones. The current folder must be the folder
        of the first submission.
        """
        runs = []
        for folder in folders:
            config, hydra = submission.read_frozen(folder)
            config["dispatch"] = dict(dispatch)
            # `run.resume` held for the first submission, which may have saved.
            config["run"]["resume"] = "auto"
            for hook in (config.get("hooks") or {}).values():
                if isinstance(hook, dict) and hook.get("load") in ("never", "must"):
                    hook["load"] = "auto"
            run = Job(from_stored(config, hydra))
            if not run.folder.path.exists() or not run.folder.path.samefile(folder):
                raise ConfigError(
                    f"'{folder.path}': was moved from {run.folder.path}; run its command again"
                    " instead."
                )
            runs.append(run)
        self._submit(runs, snapshot)

    def check(self) -> None:
        """Check that runs can be submitted from this process."""
        if RANK in os.environ:
            raise ConfigError(
                "dispatch=slurm: this process is already a rank of a job; use dispatch=local inside"
                " a job."
            )

    def submit(self, runs: Sequence[Job], code: Path | None = None) -> submission.NotNow | None:
        """Submit the runs that are not completed, running or queued, as far as SLURM takes them.

        Without `code`, the folder of a snapshot, it makes one if the configuration requests it.

        Returns:
            Why some are left to be submitted later, or None.
        """
        with ExitStack() as locks:
            # In one order, so that two commands never wait for each other.
            for outputs in sorted({run.outputs for run in runs}):
                locks.enter_context(submission.one_at_a_time(outputs))
            try:
                queue = self._look_up(runs)
            except submission.NotAnswered as error:
                return error
            return self._hand_over(runs, code, queue)

    def _submit(self, runs: list[Job], code: Path | None = None) -> list[JobResult]:
        self.check()
        if self.dry_run:
            try:
                self._look_up(runs)
            except submission.NotAnswered:
                # The script can be read without a cluster.
                print("# SLURM does not answer here, so its limits are not known.", flush=True)
            self._show([run for run in runs if run.skipped is None] or runs)
            return [JobResult() for _ in runs]
        before = signals.install()
        try:
            error = self._submit_now(runs, code)
            self.warn([run for run in runs if run.skipped is None])
            report(runs, error, self.wait)
            if self.wait:
                # Imported late, since only waiting needs tables.
                from launcher.dispatch.slurm.waiting import wait_for

                return wait_for(runs, submit_rest=lambda: self._submit_rest(runs, code))
            signals.check()
        finally:
            signals.restore(before)
        return [JobResult() for _ in runs]

    def _submit_now(self, runs: list[Job], code: Path | None) -> submission.NotNow | None:
        """Submit the runs that SLURM takes; none is an error, unless `wait` waits for room.

        A limit may be of a group, an account or a QOS, so other people may make room, too.
        """
        rest = [run for run in runs if run.is_unsubmitted]
        error = self.submit(runs, code)
        waits = self.wait and isinstance(error, submission.LimitReached)
        if error is not None and not waits and not any(run.job_id for run in rest):
            raise error
        return error

    def _submit_rest(self, runs: list[Job], code: Path | None) -> None:
        """Submit the runs that SLURM takes by now, and report them."""
        rest = [run for run in runs if run.is_unsubmitted]
        try:
            self._submit_now(runs, code)
        except submission.NotAnswered as error:
            print(f"{error.messages[0]} Trying again later.", file=sys.stderr, flush=True)
        for run in rest:
            if run.job_id is not None:
                print(f"{run.label}: SLURM job {run.job_id}, {run.folder.path}", flush=True)

    def _look_up(self, runs: Sequence[Job]) -> dict[str, QueuedJob]:
        """Note which runs are completed, running or queued; return SLURM's queue."""
        queue = submission.queue_of(run.folder for run in runs)
        for run in runs:
            if run.is_unsubmitted:
                run.skipped = why_skipped(run.config, run.folder, queue)
        return queue

    def _hand_over(
        self, runs: Sequence[Job], code: Path | None, queue: Mapping[str, QueuedJob]
    ) -> submission.NotNow | None:
        """Submit the arrays, one after the other. A signal ends this between two arrays.

        The runs that leave one trunk are an array of their own, since an array has one dependency.
        """
        due = [run for run in runs if run.is_unsubmitted]
        if not due:
            return None
        folder = submission.new_submission(due[0].outputs)
        try:
            if code is None and self.snapshot:
                code = snapshot.take(folder)
            return self._submit_arrays(runs, folder, code, queue)
        except BaseException:
            submitted = [run for run in due if run.job_id is not None]
            if submitted:
                report(submitted)
            raise
        finally:
            if all(run.job_id is None for run in due):
                shutil.rmtree(folder, ignore_errors=True)

    def _submit_arrays(
        self, runs: Sequence[Job], folder: Path, code: Path | None, queue: Mapping[str, QueuedJob]
    ) -> submission.NotNow | None:
        due = [run for run in runs if run.is_unsubmitted]
        script = self.script(due, [] if code is None else snapshot.lines(code))
        first = script.flags.get("dependency")
        part = 0
        # SLURM limits one array, not several together.
        before = None if self.array_parallelism is None else _after_jobs_of(runs, queue)
        places = {id(run.trunk): place for place, run in enumerate(due)}
        rest = sorted(due, key=lambda run: (run.depth, places[id(run.trunk)]))
        # An array's highest index is below MaxArraySize.
        most = 2 if len(due) == 1 else int(scheduler.config_value("MaxArraySize") or 1001)
        max_tasks = max(1, most - 1)
        while rest:
            signals.check()
            alike = [run for run in rest if run.trunk is rest[0].trunk]
            chunk = alike[:max_tasks]
            path = folder / f"job-{part}.sh"
            others = map(str, filter(None, (first, before, rest[0].dependency(queue))))
            script.flags["dependency"] = ",".join(others) or None
            try:
                job = self._submit_array(script, chunk, path, len(due) > 1, code)
            except submission.LimitReached as reached:
                # SLURM rejects the whole array.
                if len(chunk) == 1:
                    return submission.LimitReached(reached.limit, len(rest))
                max_tasks = len(chunk) // 2
                continue
            except submission.NotAnswered as error:
                return error
            rest = rest[len(chunk) :]
            part += 1
            if self.array_parallelism is not None:
                before = f"afterany:{job}"
        return None

    def _submit_array(
        self, script: Script, runs: list[Job], path: Path, is_array: bool, code: Path | None
    ) -> str:
        """Submit the runs as one array or plain job, and return its id, or restore their folders.

        `path` gets the script, and `code` is the folder of a snapshot.
        """
        folders = [run.folder for run in runs]
        notes = [Submission(str(path), index if is_array else None) for index in range(len(runs))]

        def freeze(run: Job, note: Submission) -> None:
            with run.folder.explain_write_errors():
                submission.freeze(run.folder, run.config.stored, run.config.hydra, note, code)

        with submission.undone_on_failure(folders):
            text = script.text(path, len(runs) if is_array else None, self.array_parallelism)
            submission.write_script(path, text, folders)
            # In threads, since each write waits for a shared file system.
            with ThreadPoolExecutor(WRITERS) as pool:
                list(pool.map(freeze, runs, notes))
            job_id = submission.hand_over(path)
        for run, note in zip(runs, notes, strict=True):
            run.job_id = job_id if note.task is None else f"{job_id}_{note.task}"
        return job_id

    def _show(self, runs: list[Job]) -> None:
        script = self.script(runs, [])
        folder = runs[0].outputs.absolute() / ".slurm" / "<submission>"
        count = min(len(runs), 1000) if len(runs) > 1 else None
        text = script.text(folder / "job-0.sh", count, self.array_parallelism)
        print(text, flush=True)
        problems = [f"! {message}" for message in (*findings(script), *test_only(text))]
        print("\n".join(problems or ["# No problems found."]), flush=True)

    def warn(self, due: Sequence[Job]) -> None:
        """Print the problems of submitted runs that `dry_run` shows."""
        for run in due[:1]:
            for message in findings(self.script([run], [])):
                print(f"! {message}", file=sys.stderr, flush=True)


def _after_jobs_of(runs: Iterable[Job], queue: Mapping[str, QueuedJob]) -> str | None:
    """Return the dependency on all jobs in the queue of the submissions that runs belong to."""
    notes = (Submission.read(run.folder) for run in runs)
    folders = {Path(note.script).parent for note in notes if note is not None}
    jobs = {
        job.id.partition("_")[0] for job in queue.values() if Path(job.script).parent in folders
    }
    return f"afterany:{':'.join(sorted(jobs))}" if jobs else None
