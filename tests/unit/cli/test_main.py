"""The command line, as a user types it."""

import json
import os
import sys
import zlib

import pytest
import torch

from launcher.cli.main import main, read
from launcher.config.compose import session
from launcher.config.explain import library_error, log_traceback, user_traceback
from launcher.config.run_config import RunConfig
from launcher.dispatch.start import start_run
from launcher.errors import ConfigError
from launcher.rundir.folder import RunFolder
from support.composition import run_of
from support.projects import exit_code, launcher, write_project

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_groups")]

LINEAR = ["job.outcome=cannot build", "model._target_=torch.nn.Linear", "~model.width"]
IS_HYDRA_1_3 = bool(session.VERSION)
hydra_1_3 = pytest.mark.skipif(
    not IS_HYDRA_1_3, reason="Hydra 1.4 composes by another method, and takes fewer modes"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_lists_the_groups(tmp_path):
    done = launcher("--help", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    for line in ("model: ", "precision: bf16, fp16, fp32, fp8, tf32", "--multirun", "Exit codes"):
        assert line in done.stdout


def test_an_invalid_configuration_is_printed_with_its_faults(folder, capsys):
    assert exit_code("trainer.max_steps=0", "--cfg", "job", "-p", "trainer.max_steps") == 2
    printed = capsys.readouterr()
    assert printed.out == "0\n"
    assert printed.err == "trainer.max_steps=0: should be a whole number greater than 0 or null.\n"


def test_a_completed_run_returns_its_metrics_again(folder):
    words = ["model=mlp", "data=digits", "device=cpu", "trainer.max_steps=1", "hooks=[evaluation]"]
    config = run_of(words)
    first = start_run(config)
    assert isinstance(first, dict) and "val/loss" in first
    assert start_run(config) == first
    assert start_run(config.replace({"job.objective": "val/loss"})) == first["val/loss"]


def test_the_help_of_hydra_is_printed(folder):
    assert exit_code("--hydra-help") == 0 and list(folder.iterdir()) == []


def test_the_completion_of_hydra_has_the_options_of_a_project(folder, monkeypatch, capsys):
    """`conf/` of the current folder is searched, as for a run."""
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "mine.yaml").write_text("_target_: my.Net")
    monkeypatch.setattr("sys.argv", ["launcher"])
    monkeypatch.setenv("COMP_LINE", "launcher model=m")
    assert exit_code("-sc", "query=bash") == 0
    assert capsys.readouterr().out.split() == ["model=mine", "model=mlp"]
    monkeypatch.setattr("sys.argv", ["__main__.py"])
    assert exit_code("-sc", "install=bash") == 2
    assert "launcher -sc install=bash" in capsys.readouterr().err


LONG = "a" * 300
"""A name that no file system takes."""
DEEP = "a/" * 3000

BAD = {
    # Syntax first, then groups, then keys, each in the order of the command.
    (
        "modle=gpt model=gptt precision=3 hooks=[default,early] optimizer.lrr=0.1 lr=0.1 max_step=3"
        " epochs=3 scheduler=null strategy=[null] seed.x=3 +seed=3 ~seedd optimizer.lr=1,2 seed"
        " trainer={ hydra.searchpath=pkg://mine"
    ): [
        "optimizer.lr=1,2: several values make a sweep, which needs -m; a list is optimizer.lr=[1,",
        "seed: should be KEY=VALUE or GROUP=OPTION",
        "trainer={: cannot be read (",
        "model=gptt: no option gptt; did you mean model=gpt? (model has ",
        "precision=3: no option 3; precision has bf16, fp16, fp32, fp8, tf32.",
        "hooks=[default,early]: no option early; did you mean hooks=[default,early_stopping]?",
        "scheduler=null: to remove the group, write ~scheduler.",
        "strategy=[null]: no option None; strategy has auto, ",
        "hydra.searchpath=pkg://mine: should be a list; e.g. 'hydra.searchpath=[value]'.",
        "modle=gpt: no key modle; did you mean model=gpt?",
        "optimizer.lrr=0.1: no key optimizer.lrr; did you mean optimizer.lr=0.1?",
        "lr=0.1: no key lr; did you mean optimizer.lr=0.1?",
        "max_step=3: no key max_step; did you mean trainer.max_steps=3?",
        "epochs=3: no key epochs; did you mean trainer.max_epochs=3?",
        "seed.x=3: seed is 0 and has no keys.",
        "+seed=3: the key exists already; remove the +.",
        "~seedd: no key seedd; did you mean ~seed?",
    ],
    "hydra.run.dir=x hydra.job.chdir=true": [
        "hydra.run.dir='x': cannot be changed; set paths.outputs instead.",
        "hydra.job.chdir=true: cannot be changed; paths are relative to the folder of the command.",
    ],
    "hydra.searchpath=[pkg://no.such,no/such] seed=x": [
        "hydra.searchpath=pkg://no.such: there is no package no.such.",
        "hydra.searchpath=no/such: there is no such folder.",
    ],
    # A folder that cannot be created, even by root.
    "paths.outputs=/proc/no/x": ["paths.outputs: /proc/no cannot be created"],
    f"paths.outputs={LONG}": ["paths.outputs: aaa"],
    f"run.dir={LONG}": ["paths.outputs: aaa"],
    "run.dir=/": ["run.dir='/': the current folder is in it; use a folder for this run alone."],
    "run.dir=..": ["run.dir='..': the current folder is in it; use a folder for this run alone."],
    f"run.name={LONG}": ["run.name='aaa"],
    f"run.id={LONG}": ["run.id='aaa"],
    f"run.init_from={LONG}": ["run.init_from='aaa"],
    f"run.init_from={DEEP}": ["run.init_from='a/a"],
    f"run.fork_from={LONG}/3": ["run.fork_from='aaa"],
    f"run.fork_from=a/{'9' * 5000}": ["run.fork_from='a/9"],
    "run.fork_from=*/3": ["run.fork_from='*/3': there is no such checkpoint"],
    "hooks.checkpointing.path=/dev/null": ["hooks.checkpointing.path: /dev/null/"],
    "hooks.checkpointing.path=/proc/no": ["hooks.checkpointing.path: /proc/no cannot be created"],
    f"hooks.checkpointing.path=/tmp/{LONG}": ["hooks.checkpointing.path: /tmp/aaa"],
    "--nope": ["unrecognized arguments: --nope; see"],
    "--seed=3": ["unrecognized arguments: --seed=3; an override has no dashes: seed=3; see"],
    "--config-name=confg": ["--config-name=confg: there is no such configuration"],
    "--config-dir=nope": ["--config-dir=nope: there is no such folder."],
    "--config-dir=": ["--config-dir is empty: a variable of the shell may be unset"],
    "--resolve": ["--resolve needs --cfg job"],
    "-m model=gpt,gptt optimizer.lrr=1,2 seed=1,x": [
        "optimizer.lrr=1: no key optimizer.lrr; did you mean optimizer.lr=1?",
        "seed='x': should be a whole number",
        "model=gptt: no option gptt; did you mean model=gpt?",
    ],
    "-m model=glob(zz*)": ["model=glob(zz*): has no value, so there is nothing to run."],
    "-m hydra/sweeper=nope seed=interval(1,2)": ["hydra/sweeper=nope: no option nope"],
    "hpo.n_trials=5 hpo=basic optimizer.lrr=1": [
        "hpo.n_trials=5: is a setting of a search, which needs -m hydra/sweeper=optuna; add that,",
        "hpo=basic: is a setting of a search",
        "optimizer.lrr=1: no key",
    ],
    "hydra/sweeper=optuna +hpo.sampler_options.x=1 hpo.space.optimizer.lr=interval(1e-3,0.1)": [
        "hydra/sweeper=optuna: has no effect without -m; add that, or leave it out.",
        "+hpo.sampler_options.x=1: is a setting of a search",
        "hpo.space.optimizer.lr=interval(1e-3,0.1): is a setting of a search",
    ],
    "hydra/launcher=basic seed=3": ["hydra/launcher=basic: has no effect without -m;"],
    "-m hpo.n_trials=5 seed=1,x": ["hpo.n_trials=5: is a setting of a search", "seed='x': should"],
    "-m hydra/sweeper=nope hpo.n_trials=5": ["hydra/sweeper=nope: no option nope"],
    "-m --run": ["--run and --multirun exclude each other"],
    "-m --cfg job seed=1,2": ["--multirun and --cfg exclude each other"],
    "-m hydra.sweep.dir=x hydra.sweep.subdir=x hydra/sweeper=basic hydra/launcher=basic seed=1,2": [
        "hydra.sweep.dir='x': cannot be changed; set paths.outputs instead.",
        "hydra.sweep.subdir='x': cannot be changed",
    ],
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_sentence_for_each_fault_and_nothing_is_written(command, folder, capsys):
    assert exit_code(*command.split()) == 2
    printed = capsys.readouterr()
    for line, beginning in zip(printed.err.splitlines(), BAD[command], strict=True):
        assert line.startswith(beginning)
    assert printed.out == ""
    assert list(folder.iterdir()) == []


def test_the_users_broken_yaml_is_named(folder, capsys):
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "broken.yaml").write_text("a: [1,\n")
    assert exit_code("--config-dir", "conf", "model=broken") == 2
    error = capsys.readouterr().err
    assert "broken.yaml" in error and "Traceback" not in error


def test_flags_may_be_among_the_overrides():
    arguments = read(["seed=1", "-m", "model=gpt,mlp", "--config-dir", "conf", "device=cpu"])
    assert arguments.multirun and arguments.config_dir == "conf"
    assert arguments.overrides == ["seed=1", "model=gpt,mlp", "device=cpu"]
    assert exit_code("-v", "--cfg", "job", "-p", "seed") == 0
    with pytest.raises(ConfigError, match="exclude each other"):
        read(["--cfg", "job", "--info"])


@pytest.mark.parametrize(
    ("overrides", "code", "lines"),
    [
        (["job.outcome=rejects"], 2, ["data.files='x': is empty.", "model.width=3: is odd."]),
        (["job.outcome=cannot build", "model.width=13"], 2, ["model.width=13: brings bad luck."]),
        (
            ["job.outcome=cannot build", "model._target_=math.no_such", "~model.width"],
            2,
            [
                "model._target_='math.no_such': cannot be imported: "
                "No module named 'math.no_such'; 'math' is not a package."
            ],
        ),
        (
            [
                "job.outcome=cannot build",
                "model._target_=fractions.Fraction",
                "~model.width",
                "+model.numerator=x",
            ],
            2,
            ["model: Fraction cannot be made: Invalid literal for Fraction: 'x'."],
        ),
        (
            [*LINEAR, "+model.in_features=-1", "+model.out_features=2"],
            2,
            [
                "model: Linear cannot be made: Trying to create tensor with negative dimension -1:"
                " [2, -1]."
            ],
        ),
        (["job.outcome=is stopped"], 143, []),
    ],
)
def test_the_exit_code_is_how_a_task_ends(overrides, code, lines, folder, capsys, monkeypatch):
    write_project(folder, package="cli_package")
    monkeypatch.syspath_prepend(folder)
    assert exit_code("--config-dir", "conf", "job=mine", "model=mine", *overrides) == code
    assert capsys.readouterr().err.splitlines() == lines
    assert (folder / "outputs").exists() == (code != 2)


NET = "\nclass Net:\n    def __init__(self, **settings): ...\n"
HALF = "from launcher.models.base import Model\n" + NET.replace("Net:", "Net(Model):")
HALF += "    def forward(self, batch): ...\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (HALF, "the class has no init_weights() and shard_units()"),
        ("# first\nimport no_such_package" + NET, "line 2: No module named 'no_such_package'."),
        ("# first\ndef broken(:" + NET, "line 2: invalid syntax."),
        ("Net = 3\n", "='3' of type 'int': should name a class or function."),
    ],
)
def test_broken_code_of_a_user_is_one_message(code, why, folder, capsys, monkeypatch):
    # Another name for each case, since Python imports a name once.
    package = f"package_{zlib.crc32(code.encode())}"
    write_project(folder, package=package)
    (folder / package / "broken.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    words = ("model=mlp", "data=digits", f"model._target_={package}.broken.Net")
    assert exit_code(*words, "trainer.max_steps=1") == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("model._target_=") and why in message
    assert not (folder / "outputs").exists()


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ("crashes", "ValueError: a bug"),
        ("cannot build", "RuntimeError: built"),
        ("exits", "RuntimeError: the code of the run called sys.exit(1)"),
    ],
)
def test_a_crash_is_a_traceback_and_exit_code_one(outcome, message, tmp_path):
    write_project(tmp_path)
    done = launcher(
        "--config-dir", "conf", "job=mine", "model=mine", f"job.outcome={outcome}", cwd=tmp_path
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr and message in done.stderr
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert frames and all("my_package" in line for line in frames), "the user's frames only"


def test_an_id_of_digits_stays_text(folder, monkeypatch):
    write_project(folder, package="cli_package")
    monkeypatch.syspath_prepend(folder)
    assert exit_code("--config-dir", "conf", "job=mine", "run.id=12345e67", "run.name=7") == 0
    assert (folder / "outputs" / "7" / "12345e67").is_dir()


MODE = "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      seed: 1,2\n"
RUN = ("model=mlp", "data=digits", "device=cpu")


@pytest.fixture
def jobs(monkeypatch):
    """Seed and steps of the jobs that would run."""
    jobs: list[tuple[int, int]] = []

    def note(config: RunConfig) -> None:
        jobs.append((config.seed, config.trainer.max_steps))

    monkeypatch.setattr("launcher.dispatch.start.dispatch_run", note)
    return jobs


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trainer.max_steps=7"], [(1, 7), (2, 7)]),
        pytest.param(["trainer.max_steps=3,4"], [(1, 3), (1, 4), (2, 3), (2, 4)], marks=hydra_1_3),
    ],
)
def test_a_file_may_make_a_sweep(folder, jobs, words, expected):
    """`hydra.mode` of a YAML file counts as `-m` does."""
    (folder / "conf" / "experiment").mkdir(parents=True)
    (folder / "conf" / "experiment" / "seeds.yaml").write_text(MODE)
    main([*RUN, "experiment=seeds", *words])
    assert sorted(jobs) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["seed=3,4", "hydra.mode=MULTIRUN"], [(3, 7), (4, 7)]),
        (["-m", "seed=3,4", "precision.init_scale=3"], [(3, 7), (4, 7)]),
        (["-m", "seed=3", "precision.init_scale=3,4"], [(3, 7), (3, 7)]),
    ],
)
def test_the_mode_of_the_command_line(folder, jobs, words, expected):
    main([*RUN, "trainer.max_steps=7", *words])
    assert jobs == expected


@pytest.mark.parametrize(
    ("words", "expected"), [([], [(0, 7)]), (["-m", "seed=3,4"], [(3, 7), (4, 7)])]
)
def test_a_preset_of_a_search_is_also_one_of_a_run_and_of_a_sweep(folder, jobs, words, expected):
    (folder / "conf" / "experiment").mkdir(parents=True)
    (folder / "conf" / "experiment" / "searched.yaml").write_text(
        "# @package _global_\ndefaults: [override /hpo: basic]\nhpo: {n_trials: 3}\n"
    )
    main([*RUN, "experiment=searched", "trainer.max_steps=7", *words])
    assert jobs == expected


def test_settings_of_a_search_are_printed(folder, capsys):
    words = ["hydra/sweeper=optuna", "hpo.n_trials=5", "--cfg", "job", "--resolve"]
    assert exit_code(*words, "-p", "hpo.n_trials") == 0
    assert capsys.readouterr().out == "5\n"


@pytest.mark.parametrize("writable", [True, False])
def test_only_a_log_that_has_the_traceback_is_named(writable, tmp_path):
    folder = RunFolder(tmp_path).create()
    if not writable:
        folder.log_path().mkdir()
    try:
        raise ValueError("the cause")
    except ValueError as error:
        log_traceback(error, folder)
        printed = user_traceback(error)
    assert "ValueError: the cause" in printed
    assert (f"The whole traceback is in {folder.log_path()}." in printed) == writable
    assert not writable or "ValueError: the cause" in folder.log_path().read_text()


def test_an_error_of_the_machine_rejects_no_argument():
    """It is a crash, with exit code 1, since the same command may succeed later."""
    assert library_error(RuntimeError("no such size")) == "no such size."
    assert library_error(torch.OutOfMemoryError("out of memory")) is None
    assert library_error(torch.distributed.DistNetworkError("no route")) is None
    assert library_error(RuntimeError("DefaultCPUAllocator: can't allocate memory")) is None
    assert library_error(OSError("no file")) is None


def test_a_traceback_without_a_line_of_the_users_code_is_named_only(tmp_path):
    folder = RunFolder(tmp_path).create()
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads("{")
    error = raised.value.with_traceback(raised.tb.tb_next)
    assert user_traceback(error).startswith("Traceback")
    log_traceback(error, folder)
    first, second = user_traceback(error).splitlines()
    assert first.startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert second.endswith(f"The whole traceback is in {folder.log_path()}.")


@pytest.mark.parametrize(("is_pipe", "code"), [(True, 141), (False, 1)])
def test_output_that_cannot_be_written_leaves_no_traceback(is_pipe, code, tmp_path, monkeypatch):
    run = run_of(["model=mlp", "data=digits", f"run.dir={tmp_path}"])
    log = run.folder.create().log_path()
    reader, writer = os.pipe() if is_pipe else (0, os.open("/dev/full", os.O_WRONLY))
    if is_pipe:
        os.close(reader)
    with os.fdopen(writer, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as ended:
            start_run(run, lambda *_: print(9999 * "a line", flush=True))
    assert ended.value.code == code and not log.exists()


def test_a_start_resumes_the_run_of_an_equivalent_configuration(folder, capsys):
    words = ("model=mlp", "data=digits", "device=cpu", "hooks=[checkpointing]")
    assert exit_code(*words, "~model.dropout", "trainer.max_steps=2", "trainer.pause_at=1") == 0
    (run,) = (folder / "outputs" / "mlp-digits").iterdir()
    assert "New run" not in capsys.readouterr().err
    assert exit_code(*words, "trainer.max_steps=2") == 0
    printed = capsys.readouterr()
    assert printed.err == f"Continues {run.name}: model.dropout=0 (new).\n"
    assert "(step 1)" in printed.out
    assert exit_code(*words, "trainer.max_steps=2") == 0
    assert "is complete already" in capsys.readouterr().out
    by_hydra = ("hydra/launcher=basic", "hydra/sweeper=basic")
    assert exit_code("-m", *words, "trainer.max_steps=2", *by_hydra) == 0
    assert list((folder / "outputs" / "mlp-digits").iterdir()) == [run]
    capsys.readouterr()
    assert exit_code("-m", *words, "trainer.max_steps=2", "seed=0,1") == 0
    line = "1 of 2 jobs continue runs of an equivalent configuration: model.dropout=0 (new).\n"
    assert line in capsys.readouterr().out
    assert exit_code(*words, "trainer.max_steps=2", "seed=2", "job=check") == 0
    assert "New run" not in capsys.readouterr().out
    assert exit_code(*words, "trainer.max_steps=2", "seed=2") == 0
    assert "New run. The nearest is " in capsys.readouterr().out
