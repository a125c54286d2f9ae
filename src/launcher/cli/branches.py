"""The plan of a sweep with `run.share_prefix`: a tree, in which each run leaves another one."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.config.command import stored_identity
from launcher.dispatch.jobs import Job


@dataclass
class Branch:
    """A run of a sweep.

    Args:
        index: the number of its job.
        steps: the steps of the whole run.
        trunk: the job whose run has the first steps, or None.
        start: the last of the steps that it has in common with the trunk.
        leaves: the jobs that leave this run, by the last common step.
    """

    index: int
    steps: int
    trunk: int | None = None
    start: int = 0
    leaves: dict[int, list[int]] = field(default_factory=dict)


def in_order(jobs: Sequence[Job]) -> list[Job]:
    """Print the plan; return the jobs in its order, each with its trunk and its leaves."""
    from launcher.optim.common_steps import comparable

    identities = []
    for job in jobs:
        _, identity = stored_identity(job.plain["run"]) or (None, {})
        # Only runs of one name are looked at.
        named = {"name": job.config.run.name, **identity}
        identities.append(comparable(named, job.config.of_the_run, None))
    branches = plan(identities)
    print(described(branches), flush=True)
    planned: dict[int, Job] = {}
    for branch in branches:
        job = jobs[branch.index]
        leaves = {
            str(step): [jobs[leaf].config.run.id for leaf in indices]
            for step, indices in branch.leaves.items()
        }
        config = job.config.changed({"run.leaves": leaves}) if leaves else job.config
        trunk = None if branch.trunk is None else planned[branch.trunk]
        planned[branch.index] = replace(job, config=config, trunk=trunk, start=branch.start)
    return list(planned.values())


def plan(identities: Sequence[dict[str, Any]]) -> list[Branch]:
    """Return the branches in the order in which they start.

    The run with the longest trunk starts first, and of equal ones the longest run. Each leaves the
    first of the runs before it with which it has the most in common. In any order the fewest steps
    are trained, since two runs share with each other what both share with a third.

    Args:
        identities: see `launcher.optim.common_steps.comparable`.
    """
    # Torch is imported late: only this needs it before a job starts.
    from launcher.optim.common_steps import common_steps

    jobs = range(len(identities))
    common = {(a, b): common_steps(identities[a], identities[b]) for a in jobs for b in jobs[:a]}
    common |= {(b, a): steps for (a, b), steps in common.items()}
    most = [max((common[job, other] for other in jobs if other != job), default=0) for job in jobs]
    lengths = [identity["trainer"]["max_steps"] or 0 for identity in identities]
    tree: dict[int, Branch] = {}
    for job in sorted(jobs, key=lambda job: (-most[job], -lengths[job])):
        trunk = max(tree, key=lambda other: common[job, other], default=None)
        start = 0 if trunk is None else common[job, trunk]
        tree[job] = Branch(job, lengths[job], trunk if start else None, start)
        if trunk is not None and start:
            tree[trunk].leaves.setdefault(start, []).append(job)
    return list(tree.values())


def described(branches: Sequence[Branch]) -> str:
    """Return the line that a sweep prints before it starts."""
    total = sum(branch.steps for branch in branches)
    trained = total - sum(branch.start for branch in branches)
    return f"{len(branches)} runs, {total:,} steps; shared: {trained:,} are trained"
