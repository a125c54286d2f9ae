"""Who may import whom, read from the source: imports go downward only, and what must start fast
imports no torch."""

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from shlex import split

import pytest
import yaml

from support.paths import ROOT

SRC = ROOT / "src"

# Top to bottom: a folder imports from itself and from the rows below its own, and never from its
# own row.
ORDER = [
    {"hydra_plugins"},
    {"__main__"},
    {"search"},
    {"api"},
    {"interactive"},
    {"cli"},
    {"certify", "guard"},
    {"proof"},
    {"dispatch"},
    {"runs"},
    {"jobs"},
    {"train"},
    {"distributed", "utils"},
    {"compat"},
    {"hooks"},
    {"run_advice"},
    {"remaining"},
    {"trackers"},
    {"resume"},
    {"checkpoint"},
    {"strategies", "data"},
    {"optim"},
    {"models"},
    {"slurm"},
    {"config"},
    {"rundir"},
    {"process"},
    {"errors", "types"},
]
ROWS = {name: number for number, names in enumerate(ORDER) for name in names}
NAME = re.compile(r"launcher(\.\w+)+\.?")
NAMES_ABOVE = {
    # a verb of `python -m launcher.runs` is imported on use
    ("launcher.runs.__main__", "launcher.proof.replay"),
    # MLflow stores it, and imports it in another program
    ("launcher.trackers.mlflow", "launcher.train.load"),
}
"""Modules whose names of modules above are no code of theirs."""

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
    " jobs.train remaining run_advice certify proof.replay process.deadline process.process_id"
    " process.signals"
    " rundir.folder rundir.lock rundir.logs rundir.provenance rundir.record"
)


def modules() -> list[Path]:
    return sorted(path for path in SRC.rglob("*.py"))


def part(module: str) -> str:
    """The part that a dotted module belongs to: `launcher.hooks.base` belongs to `hooks`."""
    top, *rest = module.split(".")
    return rest[0] if top == "launcher" and rest else top


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imported(node: ast.AST, late: bool = True) -> Iterator[str]:
    """Dotted names that are imported anywhere in a tree; without `late`, only what its import
    itself imports."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif late or not (
            isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types(child)
        ):
            yield from imported(child, late)


@cache
def names_in(path: Path) -> list[str]:
    """Dotted names that are imported anywhere in a file."""
    return list(imported(tree(path)))


def is_for_types(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


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


def strings(path: Path) -> Iterator[str]:
    """The texts in a file that are the name of a module, or of something in it."""
    for node in ast.walk(tree(path)):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and NAME.fullmatch(value):
            yield value


def test_no_text_names_a_module_above():
    """A class or module that is known by its name is an import that no other test sees."""
    found = set()
    for path in modules():
        module = dotted(path)
        row = ROWS.get(part(module), -1)
        found |= {(module, name) for name in strings(path) if ROWS.get(part(name), row) < row}
    assert found == NAMES_ABOVE


def test_one_module_builds_what_a_configuration_names():
    """A stored configuration is checked before; see `launcher.config.foreign`."""
    names = {dotted(path): " ".join(names_in(path)) for path in modules()}
    assert [module for module in names if "hydra.utils" in names[module]] == [
        "launcher.config.construct"
    ]


def test_no_module_imports_itself_by_others():
    """Nor within a function, or for types alone: two modules that need each other are one idea, or
    miss a third one."""
    graph = {dotted(path): set() for path in modules()}
    for path in modules():
        for name in names_in(path):
            target = name if name in graph else name.rpartition(".")[0]
            if target in graph and target != dotted(path):
                graph[dotted(path)].add(target)
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


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
