"""One side of a comparison: composes a preset with the code of this process, and trains its steps.

`python guard_job.py REQUEST`, where REQUEST is a JSON file, see `launcher.proof.side`. It is run as
a file, so that a copy of another commit's Launcher can train it too.
"""

import json
import os
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from launcher.config.compose.composer import command
from launcher.config.run_config import RunConfig
from launcher.errors import ConfigError
from launcher.process import signals
from launcher.process.parent import follow_parent
from launcher.process.process_id import PARENT
from launcher.proof.scratch_run import ScratchRun
from launcher.rundir.logs import prepare_output


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    signals.install()
    prepare_output()
    follow_parent(int(os.environ[PARENT]))
    # Modules that git does not track are found after the modules of the code.
    sys.path.append(str(Path.cwd()))
    try:
        if "function" in request:
            return train_trainer(request)
        with command(request["overrides"], request["config_dir"]) as words:
            run = words.run()
        run_scratch(run, request)
    except ConfigError as error:
        print(*error.messages, sep="\n", file=sys.stderr)
        raise SystemExit(2) from None


def run_scratch(run: RunConfig, request: Mapping[str, Any]) -> None:
    """Train the steps of a request in its folder, in this process or its ranks."""
    from launcher.config.run_config import load_job, save_job
    from launcher.dispatch.start import start_run

    steps, root = request["steps"], Path(request["root"])
    # A shorter training for a closer look has the intervals of the whole one.
    intervals = lowered(run.plain, request["longest"])
    # The same id for both keeps it from being a difference where a hook stores it.
    config = dict(run.replace({**intervals, "run.id": "guard"}).stored)
    traced = {**request["hook"], "folder": str(root / "trace")}
    config["hooks"] = {**config["hooks"], "guard_trace": traced}
    ranks = run.plain["dispatch"].get("nproc")
    scratch = ScratchRun(root, config, run.hydra, ranks, request["label"])
    end = min(steps, run.trainer.max_steps or steps)
    save_job(root / "job.yaml", scratch.settings(end, None), run.hydra)
    start_run(load_job(root / "job.yaml"))


def lowered(plain: Mapping[str, Any], steps: int) -> dict[str, object]:
    """Return the intervals of hooks that are longer than the steps, as short as these.

    The first evaluation, the first save and the first logged line are then within them.
    """
    intervals = {
        f"hooks.{name}.interval": hook["interval"]
        for name, hook in plain["hooks"].items()
        if hook and "interval" in hook
    }
    logged = {"hooks.logging.interval": 1} if "hooks.logging.interval" in intervals else {}
    longer: dict[str, object] = {
        key: steps
        for key, value in intervals.items()
        if isinstance(value, str) or (value or 0) > steps
    }
    return longer | logged


def train_trainer(request: Mapping[str, Any]) -> None:
    """Train the trainer that a function makes, in a workspace of its own."""
    from launcher.hooks.checkpointing import CheckpointingHook
    from launcher.process.rng import seed_all
    from launcher.proof.guard_trace import GuardHook

    root = Path(request["root"])
    (root / "trace").mkdir()
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
    trainer.workspace, trainer.pause_at = root / "run", request["steps"]
    build = trainer.build_hooks

    def build_hooks() -> list[Any]:
        hooks = list(build())
        if not any(isinstance(hook, CheckpointingHook) for hook in hooks):
            hooks.append(CheckpointingHook(interval=request["steps"]))
        return [*hooks, GuardHook(str(root / "trace"), request["hook"]["keep"])]

    trainer.build_hooks = build_hooks
    trainer.train()


if __name__ == "__main__":
    main()
