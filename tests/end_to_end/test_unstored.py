"""The first saves tell what a resume would lose: in the log, in run.json and by `runs show`."""

import json

from support.runner import launch, run_folder, start

PARTS = "support.stateful"
COMMON = (
    "data=custom", "data.batch_size=4", "model=supervised", "model.loss=mse",
    f"model.module._target_={PARTS}.case.Regressor", "trainer.max_steps=8", "device=cpu",
    "hooks.checkpointing.interval=2", "scheduler=constant",
)  # fmt: skip
START = "After a resume these would start over: "


def unstored(outputs):
    return json.loads((run_folder(outputs) / "run.json").read_text())["unstored"]


def test_a_dataset_and_a_hook_are_told_once(tmp_path):
    counting = f"data.dataset._target_={PARTS}.losing.Counting"
    hook = f"+hooks.ramp={{_target_:{PARTS}.losing.Ramp}}"
    done = launch(tmp_path, *COMMON, counting, hook, code=0)
    line = f"{START}data.dataset.count (0 -> 8), hooks.ramp.count (0 -> 2)."
    assert done.output.count(START) == 1 and line in done.output, done.output
    paths = ["data.dataset.count (0 -> 8)", "hooks.ramp.count (0 -> 2)"]
    assert unstored(tmp_path)["lost"] == paths
    show = start("-m", "launcher.runs", "show", "model=supervised", "--outputs", str(tmp_path))
    assert show.stdout is not None
    assert f"lost by a resume  {', '.join(paths)}" in show.stdout.read()
    show.wait()


def test_a_worker_tells_what_it_changes(tmp_path):
    noisy = f"data.dataset._target_={PARTS}.losing.Noisy"
    done = launch(tmp_path, *COMMON, noisy, "data.num_workers=2", code=0)
    assert done.output.count(f"{START}data.dataset.rng.") == 1, done.output
    assert unstored(tmp_path)["lost"] == ["data.dataset.rng"]


def test_another_rank_tells_rank_0(tmp_path):
    rows = f"data.dataset._target_={PARTS}.case.Rows"
    hook = "+hooks.mine={_target_:support.forgetful.LastRankCounts}"
    done = launch(tmp_path, *COMMON, rows, hook, "strategy=ddp", "dispatch.nproc=2", code=0)
    assert done.output.count(f"{START}hooks.mine.count (0 -> 2).") == 1, done.output
    assert unstored(tmp_path)["lost"] == ["hooks.mine.count (0 -> 2)"]


def test_a_run_of_our_own_parts_has_nothing_to_tell(tmp_path):
    parts = ("data=digits", "model=mlp", "hooks=[default,ema]", "device=cpu")
    saves = ("trainer.max_steps=6", "hooks.checkpointing.interval=2")
    done = launch(tmp_path, *parts, *saves, code=0)
    assert START not in done.output
    assert unstored(tmp_path) is None
