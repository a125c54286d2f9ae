"""Who may import whom, read from the source: imports go downward only, and what must start fast
imports no torch."""

import subprocess
import sys
import tokenize
from shlex import split

import pytest
import yaml
from benchmarks.rooms import (
    ROWS,
    SRC,
    arrows_up,
    dotted,
    find_circle,
    imported,
    imports_of_modules,
    modules,
    names_in,
    part,
    strings,
    tree,
)

from support.paths import ROOT

TRAINING = {"jobs", "train", "hooks", "strategies", "data", "models"}
# Folders that must not know each other although the order would allow it.
STRANGERS = {
    # a dispatch gets a configuration and hands it on: what the job will do is not its concern
    *(("dispatch", name) for name in TRAINING),
    *(("cli", name) for name in TRAINING),
    # `runs` reads what runs left behind
    *(("runs", name) for name in TRAINING),
    # what trains does not know who started it
    *((name, "slurm") for name in TRAINING),
}

# What a configuration error, `--help` or a look at the runs loads.
TORCH_FREE = split(
    "__main__ cli config errors runs slurm trackers types"
    " checkpoint.drift checkpoint.manifest checkpoint.retention checkpoint.store"
    " dispatch.local dispatch.slurm dispatch.run_job dispatch.slurm.waiting"
    " jobs.train remaining run_advice certify proof.claim proof.check_claim proof.replay"
    " process.deadline process.process_id"
    " process.signals"
    " rundir.folder rundir.lock rundir.logs rundir.provenance rundir.record"
)


def test_every_module_has_its_place():
    """A folder that is new or renamed gets its row here."""
    # The package itself is lazy.
    present = {part(dotted(path)) for path in modules()} - {"launcher"}
    assert present == ROWS.keys()
    names = {dotted(path) for path in modules()}
    assert {f"launcher.{name}" for name in TORCH_FREE} <= names


def test_imports_go_downward():
    for path in modules():
        here = part(dotted(path))
        if here == "launcher":
            names = [
                name for name in imported(tree(path), late=False) if name.startswith("launcher")
            ]
            assert {part(name) for name in names} == {"errors"}, "the package is lazy"
            continue
        for name in names_in(path):
            if not name.startswith(("launcher.", "hydra_plugins.")):
                continue
            there = part(name)
            # Its own folder, or a name of the lazy launcher.
            if there == here or there not in ROWS:
                continue
            assert ROWS[there] > ROWS[here], f"{dotted(path)} imports {name}, which is not below it"
            assert (here, there) not in STRANGERS, f"{dotted(path)} imports {name}"


def test_no_text_names_a_module_above():
    """A class or module that is known by its name is an import that no other test sees."""
    assert arrows_up(strings) == set()


def test_one_module_builds_what_a_configuration_names():
    """A stored configuration is checked before; see `launcher.config.trust`."""
    names = {dotted(path): " ".join(names_in(path)) for path in modules()}
    assert [module for module in names if "hydra.utils" in names[module]] == [
        "launcher.config.construct"
    ]


def test_no_module_imports_itself_by_others():
    """Nor within a function, or for types alone: two modules that need each other are one idea, or
    miss a third one."""
    assert find_circle(imports_of_modules()) == []


@pytest.mark.parametrize("name", ["trainer", "batches", "events"])
def test_the_trainer_names_no_strategy_and_no_model(name):
    files = [path for group in ("strategy", "model") for path in (ROOT / "conf" / group).iterdir()]
    targets = [yaml.safe_load(file.read_text()).get("_target_", "") for file in files]
    forbidden = {word for target in targets for word in target.split(".")[-2:] if word}
    assert len(forbidden) > 10
    forbidden |= {file.stem for file in files} | {"deepspeed", "fully_shard"}
    forbidden |= {"DistributedDataParallel", "FullyShardedDataParallel"}
    with open(SRC / "launcher" / "train" / f"{name}.py") as source:
        tokens = {token.string.strip("\"'") for token in tokenize.generate_tokens(source.readline)}
    assert tokens & forbidden == set()


def test_modules_of_fast_commands_import_no_torch():
    names = sorted(
        dotted(path)
        for path in modules()
        for name in TORCH_FREE
        if is_within(dotted(path), f"launcher.{name}")
    )
    command = f"import sys, {', '.join(['launcher', *names])}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", command], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"


def test_modules_of_training_import_no_compiler():
    """It takes longer than all modules of Launcher, and few runs compile."""
    rooms = ("launcher.data", "launcher.hooks", "launcher.models", "launcher.optim")
    names = [dotted(path) for path in modules()]
    chosen = [name for name in names if any(is_within(name, room) for room in rooms)]
    code = f"import sys, launcher.train.attempt, {', '.join(chosen)}"
    report = "print('torch._inductor' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {report}"], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"


def is_within(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


HEAVY = split("torch numpy optuna rich.console submitit wandb mlflow tensorboard matplotlib sympy")
# What is not to be loaded.
COMMANDS = {
    "a configuration error": ("launcher.__main__", ["optimizer.lrr=1"], HEAVY),
    "help": ("launcher.__main__", ["-h", "model=gpt"], [*HEAVY, "hydra", "omegaconf"]),
    "runs": ("launcher.runs.__main__", [], [*HEAVY, "hydra", "omegaconf"]),
    "runs --help": ("launcher.runs.__main__", ["--help"], [*HEAVY, "hydra", "omegaconf"]),
}


@pytest.mark.parametrize(("module", "words", "unused"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_loads_only_what_it_needs(tmp_path, module, words, unused):
    report = f"print(sorted(set({unused!r}) & set(sys.modules)))"
    code = (
        f"import sys, atexit; atexit.register(lambda: {report}); sys.argv[1:] = {words!r};"
        f" from {module} import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
