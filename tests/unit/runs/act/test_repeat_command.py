"""`resume`, `evaluate` and `export`: the command line that they run."""

import pytest

from launcher.checkpoint.manifest import Manifest
from launcher.errors import ConfigError
from launcher.runs.__main__ import parse
from launcher.runs.act.fork import fork_command
from launcher.runs.act.repeat_command import ranks_like, run_command, runs_and_overrides
from launcher.runs.find_runs import find_run
from launcher.runs.stored_run import StoredRun

OVERRIDES = (
    *("model=mlp", "optimizer.lr=0.1", "run.id=old", "+run.resume=never"),
    *("paths.outputs=/elsewhere", "dispatch=slurm", "dispatch.nodes=2", "job=train"),
)


@pytest.fixture
def run(make_run, outputs):
    make_run("deep/er", "12345e67", overrides=OVERRIDES)
    return find_run("12345e67", outputs)


def test_a_run_is_resumed_by_its_own_command(run, outputs):
    place = ["run.name=deep/er", "run.id=12345e67"]
    kept = ["model=mlp", "optimizer.lr=0.1", "dispatch=slurm", "dispatch.nodes=2"]
    words = run_command(run, ["trainer.max_steps=20"])
    assert words == [*kept, *place, f"paths.outputs={outputs}", "trainer.max_steps=20"]
    assert run_command(run, ["paths.outputs=/mine"]) == [*kept, *place, "paths.outputs=/mine"]
    words = run_command(run, ["job.checkpoint=best"], job="evaluate")
    here = [*place, f"paths.outputs={outputs}", "job=evaluate", "job.checkpoint=best"]
    assert words == [*kept[:2], *here]


@pytest.mark.parametrize("word", ["run.dir=/victim", "++run.dir=/victim", "+run.dir='/victim'"])
def test_a_run_is_trained_where_it_is_and_not_where_its_command_says(word, make_run, outputs):
    folder = make_run("a", "aaaa0001", overrides=["model=mlp", word])
    run = find_run("aaaa0001", outputs)
    words = [each for each in run_command(run, trust=True) if "run.dir" in each]
    assert words == [f"run.dir={folder.path}"]
    (folder.checkpoints / "step-00000010").mkdir(parents=True)
    manifest = Manifest(10, 1, "none", "sharded")
    manifest.write(folder.checkpoints / "step-00000010")
    assert not [each for each in fork_command(run, [], trust=True) if "run.dir" in each]


OF_PARTS = [
    "hooks=[default,early_stopping]", "hooks.early_stopping.patience=3",
    "hooks.evaluation.interval=2",
    "optimizer.betas=[0.9,0.99]", "optimizer.lr=0.1", "+hooks.mine._target_=launcher.LoggingHook",
]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "lost"),
    [
        (["hooks=[default]"], OF_PARTS[1:2]),
        (["hooks=[logging]", "optimizer=adamw"], OF_PARTS[1:3]),
        (["optimizer=sgd"], OF_PARTS[3:4]),
        (["hooks.logging.interval=2", "optimizer.lr=0.2"], []),
    ],
)
def test_values_of_an_option_that_is_replaced_are_left_out(
    overrides, lost, make_run, outputs, capsys
):
    make_run("a", "aaaa0001", overrides=OF_PARTS)
    command = run_command(find_run("aaaa0001", outputs), overrides, trust=True)
    assert [word for word in OF_PARTS if word not in command] == lost
    printed = capsys.readouterr().err.splitlines()
    assert [line.partition(" is left out: ")[0] for line in printed] == lost


def test_the_folder_of_further_configurations_is_kept(make_run, outputs, monkeypatch):
    """Not of a run of somebody else: the folder may have come with it."""
    folder = outputs.parent / "my" / "conf"
    (folder / "model").mkdir(parents=True)
    make_run("mlp", "12345e67", overrides=["model=mlp"], config_dir=str(folder))
    run = find_run("12345e67", outputs)
    assert run_command(run)[-2:] == ["--config-dir", str(folder)]
    monkeypatch.setenv("LAUNCHER_KEY", "/no/such/key")
    with pytest.raises(ConfigError, match=rf"^--config-dir {folder}: only the stored"):
        run_command(run)
    assert run_command(run, trust=True)[-2:] == ["--config-dir", str(folder)]


EVIL = """# @package _global_
hydra: {callbacks: {x: {_target_: evil.Callback}}}
model: {_target_: os.system, command: touch marker}
"""


@pytest.mark.parametrize(
    "words",
    [
        "hydra.searchpath=[pkg://evil]",
        "+hydra.callbacks.x._target_=evil.Callback",
        "hydra/job_logging=evil",
        "+hydra.job_logging={formatters:{x:{(): evil.run}}}",
        "+hydra.job.env_set.PYTHONPATH=/tmp/evil",
        "hydra.mode=MULTIRUN",
        "+model@hydra.callbacks.x=mlp",
        "+model@_global_.hydra.callbacks.x=mlp",
        "experiment=../outputs/evil",
        "hooks=[default,../../outputs/evil]",
        "model._target_=os.system",
        "model={_target_:os.system}",
        "trainer.compile={options:{cpp.cxx:[/tmp/evil]}}",
        "+hooks.x={_target_:numpy.load,file:evil.npy}",
        "model._target_=${evil} | +evil=os.system",
        "job=evaluate | ++job.trust=true",
        "dispatch=slurm | dispatch.setup=[touch marker]",
        "dispatch=slurm | +dispatch={setup:[touch marker]}",
        "--config-dir=/tmp",
        "-cd=/tmp",
        "--multirun",
    ],
)
def test_a_stored_override_that_names_code(make_run, outputs, monkeypatch, words):
    """It runs if this user has signed it, with `--trust`, and not if it was changed."""
    (outputs / "evil.yaml").parent.mkdir(exist_ok=True)
    (outputs / "evil.yaml").write_text(EVIL)
    monkeypatch.chdir(outputs.parent)
    *others, word = words.split(" | ")
    make_run("deep/er", "12345e67", overrides=["model=mlp", "data=digits", *others, word])
    run = find_run("12345e67", outputs)
    assert word in run_command(run)
    run.record["overrides"] = [*run.overrides, "seed=1"]
    with pytest.raises(ConfigError):
        run_command(run)
    assert word in run_command(run, trust=True)
    run.record["overrides"] = run.overrides[:-1]
    assert word in run_command(run)
    monkeypatch.setenv("LAUNCHER_KEY", str(outputs / "another"))
    with pytest.raises(ConfigError):
        run_command(run)
    assert not (outputs / "another").exists()


def test_another_job_does_without_the_stored_job_and_dispatch(make_run, outputs, monkeypatch):
    words = ["dispatch=slurm", "dispatch.setup=[touch marker]"]
    words += ["++job.trust=true", "++job._target_=os.system"]
    make_run("deep/er", "12345e67", overrides=["model=mlp", "data=digits", *words])
    monkeypatch.setenv("LAUNCHER_KEY", str(outputs / "another"))
    assert not set(words) & set(run_command(find_run("12345e67", outputs), job="evaluate"))


def test_a_run_of_somebody_else(make_run, outputs, monkeypatch):
    """The message names the target. A run that names Launcher's own parts only needs no trust."""
    metric = "hooks.evaluation.metrics.auc._target_=torchmetrics.AUROC"
    make_run("mlp", "12345e67", overrides=["model=mlp", "data=digits", f"+{metric}"])
    make_run("mlp", "22345e67", overrides=["model=mlp", "data=digits", "optimizer.lr=0.1"])
    monkeypatch.setenv("LAUNCHER_KEY", "/no/such/key")
    run = find_run("12345e67", outputs)
    with pytest.raises(ConfigError, match=rf"^{metric}: .*/no/such/key has not .* --trust if"):
        run_command(run)
    command = run_command(run, ["job.checkpoint=best"], "evaluate", trust=True)
    assert command[-2:] == ["job.trust=true", "job.checkpoint=best"]
    assert "optimizer.lr=0.1" in run_command(find_run("22345e67", outputs))


@pytest.mark.parametrize(
    "changed",
    [
        {"config": {"model._target_": "os.system"}},
        {"overrides": ["model._target_=os.system"]},
        {"config_dir": "/tmp"},
    ],
)
def test_a_record_that_was_changed_is_not_ones_own(run, change, changed):
    assert run.is_own
    change(run.folder, note="x", step=3)
    assert StoredRun.read(run.path).is_own
    change(run.folder, **changed)
    assert not StoredRun.read(run.path).is_own


def test_a_run_without_its_command_line_is_rejected(run):
    run.record["overrides"] = None
    with pytest.raises(ConfigError, match=r"^'deep/er/12345e67': .*run.id=12345e67"):
        run_command(run)


@pytest.fixture
def three(make_run):
    for number, (model, rate) in enumerate((("gpt", 0.02), ("mlp", 0.005), ("mlp", 0.02))):
        config = {"optimizer.lr": rate}
        make_run("a", f"aaaa000{number}", choices={"model": model}, config=config)


@pytest.mark.parametrize(
    ("words", "ids", "overrides"),
    [
        ("aaaa0002", "2", ""),
        ("aaaa0002 model=gpt seed=1", "2", "model=gpt seed=1"),
        ("aaaa0002 model=gpt -- seed=1", "2", "model=gpt seed=1"),
        ("model=mlp", "12", ""),
        ("model=mlp optimizer.lr=0.02", "2", ""),
        ("optimizer.lr=0.02 model=mlp -- optimizer.lr=1", "2", "optimizer.lr=1"),
        ("model=mlp -- model=gpt", "12", "model=gpt"),
    ],
)
def test_words_after_a_filter_are_filters(three, outputs, words, ids, overrides):
    runs, given = runs_and_overrides(parse(["resume", *words.split(), f"--outputs={outputs}"]))
    assert ("".join(run.id[-1] for run in runs), given) == (ids, overrides.split())


@pytest.mark.parametrize(
    ("world_size", "overrides", "added"),
    [
        (1, [], []),
        (2, [], ["dispatch=local", "dispatch.nproc=2"]),
        (2, ["job.split=test"], ["dispatch=local", "dispatch.nproc=2"]),
        (2, ["dispatch.nproc=1"], []),
        (2, ["strategy=none"], []),
        (1 << 20, [], []),
    ],
)
def test_a_run_is_evaluated_on_as_many_ranks_as_trained_it(
    make_run, outputs, change, capsys, world_size, overrides, added
):
    folder = make_run("gpt", "aaaa0001", config={"device": "cpu"}, overrides=["device=cpu"])
    change(folder, world_size=world_size)
    assert ranks_like(find_run("aaaa0001", outputs), overrides) == added
    error = capsys.readouterr().err
    assert (f"gpt/aaaa0001 was trained on {1 << 20} ranks" in error) == (world_size > 2)
