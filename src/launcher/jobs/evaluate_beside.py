"""The process that evaluates checkpoints of a run while it trains.

`python -m launcher.jobs.evaluate_beside RUN OPTIONS` reads the steps of checkpoints from its
standard input, one a line, and answers each with a line once its result is written (see
`launcher.rundir.evaluations`). It ends when its standard input does, so it never outlives the
training that started it.
"""

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from launcher.checkpoint.stored import StoredCheckpoint
from launcher.hooks.ema import EmaHook
from launcher.hooks.evaluation import EvaluationHook
from launcher.process.rng import restore_rng
from launcher.process.signals import HANDLED
from launcher.rundir.evaluations import Evaluations
from launcher.rundir.folder import RunFolder
from launcher.rundir.logs import setup_logging
from launcher.train.build import build_trainer
from launcher.train.composed import Trainer

AUTO = "launcher.strategies.auto.auto"


class Evaluator:
    """Computes what the evaluation of training would compute.

    The values are bitwise identical on the same kind of device.

    Args:
        options: settings of training on which the bits depend: `strategy` (its class),
            `world_size`, `micro_batch_size`, `threads`; and `device`, or None for the run's.
    """

    def __init__(self, folder: RunFolder, options: dict[str, Any]):
        self.folder, self.files, self.options = folder, Evaluations(folder), options
        self._trainer: Trainer | None = None
        self._hook: EvaluationHook
        self._shares: dict[str, list[Any]] = {}

    def evaluate(self, step: int) -> None:
        manifest, path = self.files.manifest(step), self.files.checkpoint(step)
        trainer = self._trainer = self._trainer or self._built(path)
        stored = StoredCheckpoint(path)
        stored.use_weights(None)
        state = stored.rank_state(0)
        for hook in trainer.hooks:
            if isinstance(hook, EmaHook) and hook.evaluate:
                stored.use_weights(f"{hook.name}/{hook.decays[0]!r}")
        trainer.strategy.load_weights(stored)
        trainer.state.step = step
        if state is not None:
            restore_rng(state["rng"])
        metrics = self._measured(trainer)
        # Signals are ignored, so it was not interrupted.
        assert metrics is not None
        self.files.write(step, manifest, metrics)

    def _built(self, path: Path) -> Trainer:
        torch.set_num_threads(self.options["threads"])
        config: Any = OmegaConf.load(path / "config.yaml")
        if config.strategy.get("_target_") == AUTO:
            config.strategy._target_ = self.options["strategy"]
        if "replicate" in config.strategy:
            config.strategy.replicate = 1
        if config.trainer.get("lanes") is None:
            config.trainer.micro_batch_size = self.options["micro_batch_size"]
        config.device = self.options["device"] or config.device
        trainer = build_trainer(config, self.folder, to_train=False, has_loader=False)
        self._hook = next(hook for hook in trainer.hooks if isinstance(hook, EvaluationHook))
        self._hook.bind(trainer.context)
        world_size = self.options["world_size"]
        if world_size == 1 or trainer.strategy.lanes is not None:
            self._hook.open()
        else:
            self._shares = self._hook.shares(world_size)
        return trainer

    def _measured(self, trainer: Trainer) -> dict[str, object] | None:
        if not self._shares:
            return self._hook.measure(trainer)
        metrics: dict[str, Any] = {}
        for name, shares in self._shares.items():
            measured = self._hook.means(trainer).over_shares(shares)
            metrics |= {name: measured} if name else measured
        return metrics


def _read(requests: "queue.Queue[int]") -> None:
    for line in sys.stdin:
        requests.put(int(line))
    os._exit(0)


def main() -> None:
    for signum in HANDLED:
        # They are meant for the training, whose end ends this process.
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    # Code of the user may print.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    setup_logging(None, 0)
    requests: queue.Queue[int] = queue.Queue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    folder, options = sys.argv[1:]
    evaluator = Evaluator(RunFolder(folder), json.loads(options))
    while True:
        step = requests.get()
        evaluator.evaluate(step)
        print(step, file=answers, flush=True)


if __name__ == "__main__":
    main()
