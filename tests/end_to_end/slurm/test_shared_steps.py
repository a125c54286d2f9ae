"""A sweep whose runs share their first steps, on a real cluster."""

import json
from pathlib import Path

from support.lab import (
    MAX_WAIT_S,
    QUICK,
    experiment,
    hurry,
    job_of,
    run_folders,
    steps_done,
    wait_for,
)
from support.runner import metrics_of, start

WORDS = (
    *("scheduler=wsd", "scheduler.warmup_steps=5"),
    *("-m", "scheduler.decay_ratio=0.1,0.2,0.3"),
)


def by_ratio(outputs):
    return {
        str(read(folder)["config"]["scheduler.decay_ratio"]): folder
        for folder in run_folders(outputs)
    }


def read(folder):
    return json.loads((folder / "run.json").read_bytes())


def attempts_of(folder):
    return read(folder)["attempts"]


def test_runs_wait_for_their_trunk_which_is_preempted_twice(cluster, tmp_path):
    lab, outputs, alone = cluster, tmp_path / "outputs", tmp_path / "alone"
    undisturbed = start("-m", "launcher", *experiment(alone, 60), *QUICK, *WORDS)
    words = [*experiment(outputs, 60), *WORDS, "run.share_prefix=true", "dispatch=slurm"]
    words.append("+tracker.pace.starts=2")
    done = lab.launcher(*words, "dispatch.partition=preempt")
    assert "3 runs, 180 steps; shared: 88 are trained" in done.stdout, done.stdout + done.stderr
    folders = by_ratio(outputs)
    trunk, leaves = folders["0.1"], [folders["0.2"], folders["0.3"]]
    job = job_of(trunk)
    for leaf in leaves:
        assert lab.info(job_of(leaf))["Dependency"].startswith(f"afterany:{job}(")
    hurry(*leaves)
    for number in (1, 2):
        wait_for(lambda number=number: len(attempts_of(trunk)) == number, f"start {number}")
        begun = attempts_of(trunk)[-1]["start_step"]
        wait_for(lambda begun=begun: steps_done(trunk) > begun + 2, "the trunk to train")
        lab.preempt(lab.info(job)["NodeList"])
    for folder in (trunk, *leaves):
        assert lab.wait_until_ended(job_of(folder)) == "COMPLETED"
    outcomes = [attempt["outcome"] for attempt in attempts_of(trunk)]
    assert outcomes == ["preempted", "preempted", "completed"]
    assert [attempts_of(leaf)[0]["start_step"] for leaf in leaves] == [49, 43]
    text, _ = undisturbed.communicate(timeout=MAX_WAIT_S)
    assert undisturbed.returncode == 0, text
    for ratio, folder in by_ratio(alone).items():
        assert metrics_of(folders[ratio]) == metrics_of(folder)
        for name in ("shard-00000.safetensors", "rank-00000.safetensors", "state.json"):
            file = Path("checkpoints", "latest", name)
            assert (folders[ratio] / file).read_bytes() == (folder / file).read_bytes()
    log = (folders["0.2"] / "logs" / "launcher.log").read_text()
    assert f"New run. Shares steps 0 to 49 with {trunk.name}." in log
