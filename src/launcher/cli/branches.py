"""The plan of a sweep with `run.share_prefix`: a tree, in which each run leaves another one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from launcher.config.identity.record_entry import read_identity
from launcher.config.tree import Node
from launcher.dispatch.jobs import Job
from launcher.process.plural import plural
from launcher.rundir.run_on_disk import RunOnDisk
from launcher.rundir.training_history import distinct_settings


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
    from launcher.resume.common_steps import comparable

    identities = []
    histories = []
    for job in jobs:
        _, identity = read_identity(job.plain["run"]) or (None, {})
        # Only runs of one name are looked at.
        named = {"name": job.config.run.name, **identity}
        identities.append(comparable(named, job.config.of_the_run, None))
        # A run found by its id may have been trained with other settings.
        trained = distinct_settings(RunOnDisk.read(job.config.folder).attempts)
        histories.append([{"name": job.config.run.name, **settings} for settings in trained])
    branches = plan(identities, histories)
    print(describe_branches(branches), flush=True)
    planned: dict[int, Job] = {}
    for branch in branches:
        job = jobs[branch.index]
        leaves = {
            str(step): [jobs[leaf].config.run.id for leaf in indices]
            for step, indices in branch.leaves.items()
        }
        config = job.config.replace({"run.leaves": leaves}) if leaves else job.config
        trunk = None if branch.trunk is None else planned[branch.trunk]
        planned[branch.index] = replace(job, config=config, trunk=trunk, start=branch.start)
    return list(planned.values())


def plan(identities: Sequence[Node], histories: Sequence[Sequence[Node]] = ()) -> list[Branch]:
    """Return the branches in the order in which they start.

    The run with the longest trunk starts first, and of equal ones the longest run. Each leaves the
    first of the runs before it with which it has the most in common. In any order the fewest steps
    are trained, since two runs share with each other what both share with a third.

    Args:
        identities: see `launcher.resume.common_steps.comparable`.
        histories: what each of these runs has been trained with so far, in the same form.
    """
    # Torch is imported late: only this needs it before a job starts.
    from launcher.resume.common_steps import decisive_part

    parts = list(map(decisive_part, identities))
    pairs = zip_longest(identities, histories, fillvalue=())
    runs = [[identity, *history] for identity, history in pairs]
    tree = _grow(range(len(runs)), runs, parts)
    most = {job: max([branch.start, *branch.leaves]) for job, branch in tree.items()}
    order = sorted(most, key=lambda job: (-most[job], -tree[job].steps))
    return list(_grow(order, runs, parts).values())


def _grow(
    order: Iterable[int], runs: Sequence[Sequence[Node]], parts: Sequence[str]
) -> dict[int, Branch]:
    """Let each run leave the first one before it with which it has the most in common.

    Runs that leave one trunk at one step have no more than that in common. So few pairs are
    compared: at each fork the runs that leave it there, until none has more.
    """
    from launcher.resume.common_steps import common_steps

    tree: dict[int, Branch] = {}
    roots: dict[str, list[int]] = {}
    for job in order:
        own = runs[job][0]
        branch = Branch(job, own["trainer"]["max_steps"] or 0)
        siblings = roots.setdefault(parts[job], [])
        while True:
            pairs = (
                (other, min(common_steps(own, trained) for trained in runs[other]))
                for other in siblings
            )
            closest = next((pair for pair in pairs if pair[1] > branch.start), None)
            if closest is None:
                break
            branch.trunk, branch.start = closest
            siblings = tree[branch.trunk].leaves.setdefault(branch.start, [])
        siblings.append(job)
        tree[job] = branch
    return tree


def describe_branches(branches: Sequence[Branch]) -> str:
    """Return the line that a sweep prints before it starts."""
    total = sum(branch.steps for branch in branches)
    trained = total - sum(branch.start for branch in branches)
    return (
        f"{plural(len(branches), 'run')}, {plural(total, 'step')}; shared: {trained:,} are trained"
    )
