"""SLURM's commands, with timeouts, and shielded from the signals that SLURM sends to our job."""

import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.process import signals
from launcher.process.process_id import RANK_VARIABLES

TIMEOUT = 20.0
"""Seconds per call. SLURM's commands themselves give up after MessageTimeout, 10 s by default."""
SUBMISSION_TIMEOUT = 60.0
"""Seconds that sbatch may take, since it waits for a busy controller."""
USER_DEFAULTS = ("SQUEUE_", "SCONTROL_", "SINFO_", "SACCT_", "SCANCEL_", "SLURM_TIME_FORMAT")
"""Variables that change the output of SLURM's commands. A filter would hide jobs."""
RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT")
ENDING = "COMPLETING"
"""SLURM's state of a job whose processes have ended or been signalled."""
CANCELLED = "CANCELLED"
UNREACHABLE = (
    "timed out",
    "unable to contact",
    "unexpected message received",
    "zero bytes were transmitted",
    "header lengths are longer",
    "communication connection failure",
    "communication shutdown failure",
    "message send failure",
    "message receive failure",
    "backup controller in standby",
)
"""Parts of SLURM's messages, in lower case, of a controller that dies or has just started."""
PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
ENDLESS = re.compile(
    "DependencyNeverSatisfied|BadConstraints|Invalid(Account|QOS)|(Account|QOS)NotAllowed"
    "|Partition(Config|NodeLimit|TimeLimit)|ReservationDeleted"
)
"""SLURM's reasons why a job waits that only another submission, or an administrator, ends."""


class SchedulerError(Exception):
    """SLURM did not answer, or rejected a command, with its message."""


class NoAnswer(SchedulerError):
    """SLURM could not be reached. A later call may succeed."""


@dataclass(frozen=True)
class JobInfo:
    """The fields of `scontrol show job` that show how a job ended.

    Times are in seconds since the epoch, or None if they are not known.
    """

    state: str
    reason: str
    restarts: int
    is_batch: bool
    has_run: bool
    """False while it waits for its first or next start."""
    start: float | None
    end: float | None
    """End of a running job's time limit, or of the grace period of a preemption."""
    preempted_at: float | None

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING

    @property
    def is_waiting(self) -> bool:
        return self.state in PENDING and not self.is_running

    @property
    def has_reason(self) -> bool:
        return self.reason not in ("", "None")

    def __str__(self) -> str:
        """Return SLURM's state and reason: `NODE_FAIL (NodeDown)`."""
        if self.has_reason:
            return f"{self.state} ({self.reason})"
        return self.state


@dataclass(frozen=True)
class QueuedJob:
    """A line of `squeue`: a job or one task of an array that has not ended."""

    id: str
    state: str
    reason: str
    nodes: str
    script: str = ""
    """The path that sbatch was called with."""

    @property
    def task(self) -> int | None:
        index = self.id.partition("_")[2]
        return int(index) if index.isdecimal() else None

    @property
    def is_pending(self) -> bool:
        return self.state in PENDING

    @property
    def is_held(self) -> bool:
        """Held by a person (JobHeldUser) or by SLURM (launch failed requeued held)."""
        return "held" in self.reason.lower()

    @property
    def waits_for(self) -> str | None:
        """SLURM's reason why it does not run yet: Resources, Priority, BeginTime."""
        if self.is_pending and self.reason not in ("", "None"):
            return self.reason
        return None

    @property
    def advice(self) -> str | None:
        """Return how a wait ends that does not end by itself, or None."""
        if self.is_held and self.reason != "JobHeldAdmin":
            return f"scontrol release {self.id} lets it start"
        if ENDLESS.fullmatch(self.waits_for or ""):
            return "it never starts; cancel it"
        return None


def call(command: Sequence[str], timeout: float = TIMEOUT, input: str = "") -> str:
    """Return the output of a command, or raise a SchedulerError.

    SLURM signals every process of a job, so a `scontrol` started by the job would be killed just
    when it is needed. It inherits a block of these signals.
    """
    try:
        with signals.block():
            done = subprocess.run(
                command,
                input=input,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                env={
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith(USER_DEFAULTS)
                },
            )
    except FileNotFoundError:
        raise NoAnswer(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} did not answer within {timeout:g} s") from None
    if done.returncode != 0:
        message = " ".join((done.stderr or done.stdout).split())
        problem = message or f"exit code {done.returncode}"
        is_busy = any(words in message.lower() for words in UNREACHABLE)
        cls = NoAnswer if is_busy else SchedulerError
        raise cls(f"{' '.join(command[:2])} failed: {problem}")
    return done.stdout


def job_info(job: str) -> JobInfo:
    """Return the state of a job, or raise `NoAnswer` if SLURM does not know it."""
    try:
        info = parse_job(call(["scontrol", "show", "job", "-o", job]))
    except SchedulerError as error:
        raise NoAnswer(str(error)) from None
    if not info.state:
        raise NoAnswer(f"scontrol shows no state of job {job}")
    return info


def parse_job(text: str) -> JobInfo:
    """Parse the line of `scontrol show job -o`."""
    fields = _fields(text)
    return JobInfo(
        state=fields.get("JobState", ""),
        reason=fields.get("Reason", ""),
        restarts=int(fields.get("Restarts", 0)),
        is_batch=fields.get("BatchFlag", "0") != "0",
        has_run=fields.get("RunTime") != "00:00:00",
        start=_seconds(fields.get("StartTime", "")),
        end=_seconds(fields.get("EndTime", "")),
        preempted_at=_seconds(fields.get("PreemptTime", "")),
    )


def _fields(text: str) -> dict[str, str]:
    """Return the fields between the texts of users: the name, and the command and comment."""
    words = text.partition(" UserId=")[2].partition(" Command=")[0].split()
    return dict(word.partition("=")[::2] for word in words)


def submit(script: Path) -> str:
    """Submit a script; return the job's id. After an error, SLURM may have the job anyway."""
    with clean_environment():
        text = call(["sbatch", "--parsable", str(script)], SUBMISSION_TIMEOUT)
    # A cluster's own sbatch may print more.
    job = re.search(r"^(\d+)(;|$)", text, re.MULTILINE)
    if job is None:
        raise SchedulerError(f"sbatch printed no job id: {' '.join(text.split())}")
    return job[1]


def _seconds(text: str) -> float | None:
    """Convert a local time in SLURM's notation to seconds since the epoch, if it is a time."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def boot_time() -> float | None:
    return _seconds(config_value("BOOT_TIME") or "")


def kill_wait() -> float:
    """Return the seconds from SLURM's SIGTERM to its SIGKILL, which are never less than 5."""
    return max(5.0, float((config_value("KillWait") or "0").split()[0]))


def requeue(job: str) -> None:
    """Requeue a job under its own id. SLURM ends a running job first."""
    call(["scontrol", "requeue", job])


def hold(job: str) -> None:
    """Keep a job that waits from starting, until `release`."""
    call(["scontrol", "hold", job])


def release(job: str) -> None:
    call(["scontrol", "release", job])


def queue(notes: Iterable[Path] = ()) -> dict[str, QueuedJob] | None:
    """Return all jobs that have not ended, by id (an array's task is `12_3`), without accounting.

    Args:
        notes: files of runs, whose owners' jobs are listed too, since users may share an output
            folder.
    Returns:
        None if SLURM does not answer.
    """
    try:
        lines = _squeue(notes, "%i|%T|%r|%N|%o")
    except SchedulerError:
        return None
    rows = (line.strip().split("|", 4) for line in lines if line.count("|") >= 4)
    jobs = (
        QueuedJob(id, state, reason, nodes, script) for id, state, reason, nodes, script in rows
    )
    return {job.id: job for job in jobs if job.state != "COMPLETED"}


def find_ends(
    jobs: Mapping[tuple[str, str], bool], notes: Iterable[Path] = ()
) -> dict[tuple[str, str], str]:
    """Return SLURM's last state of jobs, as far as it knows them: FAILED, NODE_FAIL, CANCELLED.

    Without accounting it forgets a job MinJobAge after its end (300 s by default). It never knows
    an array's task that was cancelled alone, before it started. So a job that has not started, and
    that SLURM does not know, was cancelled. A job of the same id with another script belongs to
    another cluster, or ids were reset.

    Args:
        jobs: ids and scripts of jobs that have left the queue, and whether each has started. An
            empty script is not known.
        notes: as in `queue`.
    """
    try:
        lines = _squeue(notes, "%i|%T|%o", "--states=all")
    except SchedulerError:
        return {}
    known = {line.partition("|")[0].strip() for line in lines}
    left = {job for job, _ in jobs} - known
    if left:
        fields = "--format=JobID,State,SubmitLine"
        with suppress(SchedulerError):
            lines += call(["sacct", "-X", "-n", "-P", "-j", ",".join(left), fields]).splitlines()
    states: dict[str, tuple[str, str]] = {}
    for tasks, _, rest in (line.strip().partition("|") for line in lines):
        state, _, command = rest.partition("|")
        states |= dict.fromkeys(_tasks(tasks), (state, command))
    ends: dict[tuple[str, str], str] = {}
    for (job, script), started in jobs.items():
        state, command = states.get(job, ("" if started else CANCELLED, script))
        # sacct says who has cancelled it: `CANCELLED by 1000`.
        if state and command.endswith(script):
            ends[job, script] = state.split()[0]
    return ends


def _tasks(job: str) -> Iterator[str]:
    """List the ids in a job id of sacct: 2_[0-3,7%2] are waiting tasks of array 2."""
    array, bracket, ranges = job.partition("_[")
    if not bracket:
        yield job
        return
    for span in ranges.rstrip("]").partition("%")[0].split(","):
        first, _, last = span.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            yield from (f"{array}_{task}" for task in range(int(first), int(last or first) + 1))


def _squeue(notes: Iterable[Path], fields: str, *flags: str) -> list[str]:
    """Return a line per job of the user and of the owners of `notes`."""
    owners = {os.getuid()}
    for path in notes:
        with suppress(OSError):
            owners.add(path.stat().st_uid)
    users = "--me" if len(owners) == 1 else f"--user={','.join(map(str, sorted(owners)))}"
    command = ["squeue", "--noheader", "--array", users, f"--format={fields}", *flags]
    return call(command).splitlines()


def cancel(jobs: Sequence[str]) -> dict[str, str]:
    """Cancel jobs, with one call per hundred.

    Returns:
        SLURM's message for each job that it does not cancel, such as a job of another user.
    """
    rejected: dict[str, str] = {}
    for start in range(0, len(jobs), 100):
        batch = jobs[start : start + 100]
        try:
            call(["scancel", *batch])
        except NoAnswer:
            raise
        except SchedulerError as error:
            # The other jobs of the batch are cancelled by now. Cancelling them again does nothing.
            if len(batch) == 1:
                rejected[batch[0]] = str(error)
            else:
                for job in batch:
                    rejected |= cancel([job])
    return rejected


def config_value(name: str) -> str | None:
    """Return a value of `scontrol show config`, or None if SLURM does not answer."""
    try:
        lines = call(["scontrol", "show", "config"]).splitlines()
    except SchedulerError:
        return None
    pairs = (line.partition("=") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), None)


def partition_values(partition: str | None) -> dict[str, str]:
    """Return the fields of a partition (None: the default one), if SLURM answers."""
    try:
        lines = call(
            ["scontrol", "show", "partition", "-o", *([partition] if partition else [])]
        ).splitlines()
    except SchedulerError:
        return {}
    for line in lines:
        values = dict(word.partition("=")[::2] for word in line.split())
        if partition or values.get("Default") == "YES":
            return values
    return {}


def preempts_by_requeue(with_grace: bool = False) -> bool:
    """Return whether SLURM itself requeues the jobs that it preempts in this job's partition.

    `with_grace` asks for a partition with a grace period, in which a job can requeue itself.
    Without one, and without accounting, SLURM's requeue looks like a user's.
    """
    values = partition_values(os.environ.get("SLURM_JOB_PARTITION"))
    return (
        values.get("PreemptMode") == "REQUEUE"
        and (values.get("GraceTime", "0") != "0") == with_grace
    )


LEAKING_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SUBMITIT_")
INHERITED_VARIABLES = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT"}
"""Variables that are kept: the cluster's address."""


@contextmanager
def clean_environment() -> Iterator[None]:
    """Remove the variables of a surrounding job, which a submitted job would take for its own."""
    leaked = [
        name
        for name in os.environ
        if (name.startswith(LEAKING_PREFIXES) or name in RANK_VARIABLES)
        and name not in INHERITED_VARIABLES
    ]
    hidden = {name: os.environ.pop(name) for name in leaked}
    try:
        yield
    finally:
        os.environ.update(hidden)
