"""One side of a comparison: trains a preset with the code of this process, and writes its values.

`python guard_job.py REQUEST`, where REQUEST is a JSON file, see `launcher.proof.side`. It is run as
a file, so that another commit of Launcher's own repository trains by its own version of it.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import yaml

from launcher.config.compose.composer import command
from launcher.config.run_config import load_job, save_job
from launcher.errors import ConfigError
from launcher.process import collector, signals
from launcher.process.parent import follow_parent
from launcher.process.process_id import PARENT
from launcher.proof.scratch_run import ScratchRun
from launcher.rundir.folder import RunFolder, step_name
from launcher.rundir.logs import prepare_output
from launcher.rundir.provenance import MACHINE, describe_machine

Value = tuple[tuple[int, str, int, str], object]
"""A value and its place: step, kind, rank and name."""
HOOK = "launcher.proof.guard_trace.GuardHook"


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    root = Path(request["root"])
    collector.pause()
    signals.install()
    prepare_output()
    follow_parent(int(os.environ[PARENT]))
    # Modules that git does not track are found after the modules of the code.
    sys.path.append(str(Path.cwd()))
    (root / "trace").mkdir()
    try:
        train = train_function if "function" in request else train_preset
        run, config = train(request, root)
    except ConfigError as error:
        print(*error.messages, sep="\n", file=sys.stderr)
        raise SystemExit(2) from None
    write_values(root, run, config)


def train_preset(request: Mapping[str, Any], root: Path) -> tuple[RunFolder, Mapping[str, Any]]:
    """Train a command line, in this process or in ranks; return the run and its configuration."""
    from launcher.dispatch.start import start_run

    with command(request["overrides"], request["config_dir"]) as words:
        run = words.run()
    # A shorter training for a closer look has the intervals of the whole one.
    intervals = lowered(run.plain["hooks"], request["longest"])
    # The same id for both keeps it from being a difference where a hook stores it.
    config = dict(run.replace({**intervals, "run.id": "guard"}).stored)
    hook = {"_target_": HOOK, "folder": str(root / "trace"), "keep": request["keep"]}
    config["hooks"] = {**config["hooks"], "guard_trace": hook}
    ranks = run.plain["dispatch"].get("nproc")
    scratch = ScratchRun(root / "run", config, run.hydra, ranks, "guard")
    end = min(request["steps"], run.trainer.max_steps or request["steps"])
    stored = scratch.settings(end, None)
    save_job(root / "job.yaml", stored, run.hydra)
    start_run(load_job(root / "job.yaml"))
    return scratch.folder, stored


def lowered(hooks: Mapping[str, Any], steps: int) -> dict[str, object]:
    """Return the intervals of hooks that are longer than the steps, as short as these.

    The first evaluation, the first save and the first logged line are then within them.
    """
    changed: dict[str, object] = {}
    for name, hook in hooks.items():
        interval = (hook or {}).get("interval") or 0
        if isinstance(interval, str) or interval > steps or name == "logging":
            changed[f"hooks.{name}.interval"] = 1 if name == "logging" else steps
    return changed


def train_function(request: Mapping[str, Any], root: Path) -> tuple[RunFolder, Mapping[str, Any]]:
    """Train the trainer that a function makes, in a workspace of its own."""
    from launcher.hooks.checkpointing import CheckpointingHook
    from launcher.process.rng import seed_all
    from launcher.proof.guard_trace import GuardHook

    file, name = request["function"]
    if not Path(file).is_file():
        raise ConfigError(f"{name}: its file is not there")
    spec: Any = spec_from_file_location(Path(file).stem, file)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ConfigError(f"{name}: there is no such function")
    # A trainer seeds only what it draws from, and all generators are compared.
    seed_all(0, 0)
    trainer = getattr(module, name)()
    trainer.workspace = root / "run"
    trainer.pause_at = request["steps"]
    build = trainer.build_hooks

    def build_hooks() -> list[Any]:
        hooks = list(build())
        if not any(isinstance(hook, CheckpointingHook) for hook in hooks):
            hooks.append(CheckpointingHook(interval=request["steps"]))
        return [*hooks, GuardHook(str(root / "trace"), request["keep"])]

    trainer.build_hooks = build_hooks
    trainer.train()
    return RunFolder(root / "run"), {}


def write_values(root: Path, run: RunFolder, config: Mapping[str, Any]) -> None:
    """Write what the command needs of a training, which need not import torch for it."""
    saved = run.checkpoints / step_name(run.newest_step())
    machine = ""
    # The trainer of a function does not record it.
    if (saved / MACHINE).exists():
        recorded = yaml.safe_load((saved / MACHINE).read_text())
        machine = f"{describe_machine(recorded)}, torch {version('torch')}"
    content = {
        "values": list(values_of(run, root / "trace")),
        "end": run.newest_step(),
        "config": config,
        "modules": json.loads((root / "trace/modules.json").read_bytes()),
        "machine": machine,
    }
    (root / "values.json").write_text(json.dumps(content))


def values_of(run: RunFolder, trace: Path) -> Iterator[Value]:
    """Yield all that a training has read and computed, with large values as digests."""
    from launcher.checkpoint.stored import StoredCheckpoint
    from launcher.proof.diff import lines_of
    from launcher.proof.trace import plain

    end = run.newest_step()
    checkpoint = StoredCheckpoint(run.checkpoints / step_name(end))
    data = checkpoint.meta["training_state"].get("data_loader")
    yield (0, "data", 0, ""), data.get("dataset") if isinstance(data, Mapping) else None
    yield from values_of_steps(trace)
    yield (end, "end", 0, ""), end
    rates = json.loads((trace / "rates.json").read_bytes())
    for step, rate in enumerate(rates or (), end + 1):
        yield (step, "learning rate", 0, ""), ", ".join(map(repr, rate))
    for step, line in lines_of(run, 0, end).items():
        yield from (((step, "metrics", 0, key), repr(value)) for key, value in line.items())
    for name in checkpoint.names():
        yield (end, "tensor", 0, name), plain(checkpoint.read(name))
    states: dict[str, object] = {"state": checkpoint.meta}
    for rank in range(checkpoint.manifest.world_size):
        states[f"rank {rank}"] = checkpoint.rank_state(rank)
    for name, value in leaves("", states):
        yield (end, "state", 0, name), plain(value)


def values_of_steps(trace: Path) -> Iterator[Value]:
    from launcher.proof.diff import CAUSES, read_trace

    for rank, steps in read_trace(trace).items():
        for step, line in steps.items():
            for kind in CAUSES:
                value = line.get(kind)
                # Gradients and weights are compared by name.
                named = value if kind in ("gradients", "weights") else {"": value}
                for name, part in (named or {}).items():
                    if part is not None:
                        yield (step, kind, rank, name), part


def leaves(name: str, value: Any) -> Iterator[tuple[str, object]]:
    """Yield the leaves of a nested state, without times and how far to train."""
    from launcher.checkpoint.digests import is_left_out

    if is_left_out(name):
        return
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, item in value.items():
        yield from leaves(f"{name}/{key}" if name else str(key), item)


if __name__ == "__main__":
    main()
