"""A sweep whose runs share their first steps, on a real cluster."""

import json
from pathlib import Path
from typing import Any

from launcher.rundir.folder import RunFolder
from launcher.slurm.submission import Submission
from support.lab import QUICK, experiment, run_folders, steps_done, wait_for
from support.runner import launch, metrics_of

RATIOS = ("0.1", "0.2", "0.3")
WORDS = (
    "scheduler=wsd",
    "scheduler.warmup_steps=5",
    "-m",
    f"scheduler.decay_ratio={','.join(RATIOS)}",
)


def by_ratio(outputs: Path) -> dict[str, Path]:
    return {
        str(record(folder)["config"]["scheduler.decay_ratio"]): folder
        for folder in run_folders(outputs)
    }


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_bytes())


def attempts_of(folder: Path) -> list[dict[str, Any]]:
    attempts: list[dict[str, Any]] = record(folder)["attempts"]
    return attempts


def job_of(folder: Path) -> str:
    note = Submission.read(RunFolder(folder))
    assert note is not None and note.job_id is not None
    return note.job_id


def test_runs_wait_for_their_trunk_which_is_preempted_twice(cluster, tmp_path):
    lab, outputs = cluster, tmp_path / "outputs"
    words = [*experiment(outputs, 60), *WORDS, "run.share_prefix=true", "dispatch=slurm"]
    words.append("+tracker.pace.starts=2")
    done = lab.launcher(*words, "dispatch.partition=preempt")
    assert "3 runs, 180 steps; shared: 88 are trained" in done.stdout, done.stdout + done.stderr
    folders = by_ratio(outputs)
    trunk, leaves = folders["0.1"], [folders["0.2"], folders["0.3"]]
    job = job_of(trunk)
    for leaf in leaves:
        assert lab.info(job_of(leaf))["Dependency"].startswith(f"afterany:{job}(")
    for number, step in enumerate((6, 22), 1):
        wait_for(lambda step=step: steps_done(trunk) >= step, f"step {step} of the trunk")
        lab.preempt(lab.info(job)["NodeList"])
        wait_for(lambda number=number: len(attempts_of(trunk)) > number, "the trunk's next start")
    for folder in (trunk, *leaves):
        assert lab.wait_until_ended(job_of(folder)) == "COMPLETED"
    assert [attempt["outcome"] for attempt in attempts_of(trunk)] == [
        "preempted",
        "preempted",
        "completed",
    ]
    starts = [attempts_of(leaf)[0]["start_step"] for leaf in leaves]
    assert starts == [49, 43]
    alone = tmp_path / "alone"
    ended = launch(alone, *experiment(alone, 60), *QUICK, *WORDS)
    assert ended.returncode == 0, ended.output
    for ratio, folder in by_ratio(alone).items():
        assert metrics_of(folders[ratio]) == metrics_of(folder)
        for name in ("shard-00000.safetensors", "rank-00000.safetensors", "state.json"):
            file = Path("checkpoints", "latest", name)
            assert (folders[ratio] / file).read_bytes() == (folder / file).read_bytes()
    log = (folders["0.2"] / "logs" / "launcher.log").read_text()
    assert f"New run. Shares steps 0 to 49 with {trunk.name}." in log
