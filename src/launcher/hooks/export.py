"""Exports the weights once a run is complete."""

from pathlib import Path
from typing import ClassVar, Literal

from launcher.checkpoint.export_weights import Export
from launcher.checkpoint.find_checkpoint import find_checkpoint
from launcher.checkpoint.push import check_repository, push
from launcher.config.schema.matters_from import never
from launcher.errors import ConfigError
from launcher.hooks.base import BaseHook
from launcher.hooks.best import best_step, check_keeps_best
from launcher.hooks.jsonl import JsonlHook
from launcher.hooks.view import TrainerView
from launcher.process import ranks
from launcher.rundir.folder import RunFolder

KEY = "hooks.export"


class ExportHook(BaseHook):
    """Exports the weights of the last or the best checkpoint as `job=export` does.

    The run is completed only then, so the same command repeats an export that was interrupted.

    Args:
        checkpoint: best or last.
        weights: `ema` (or `ema/0.999`, if there are several) is the average that `hooks.ema` keeps.
            Default None: the weights.
        dtype: convert floating-point tensors. Default None: they are not converted.
        push: a repository of the Hugging Face Hub, owner/name, that gets the export. Default None:
            nothing is pushed.
    """

    changes_numbers = False
    provides = ()
    at_the_end = ("checkpoint",)
    needs: ClassVar = {"checkpoint=*": "checkpointing", "weights=ema*": "ema"}
    matters_from: ClassVar = {"*": never}

    def __init__(
        self,
        checkpoint: Literal["best", "last"] = "last",
        weights: str | None = None,
        dtype: Literal["fp32", "bf16", "fp16"] | None = None,
        push: str | None = None,
    ):
        check_repository(f"{KEY}.push", push)
        self.checkpoint = checkpoint
        self.push = push
        self.export = Export(KEY, weights, dtype)

    def on_before_train(self, trainer: TrainerView) -> None:
        if "config.yaml" not in trainer.context.texts:
            raise ConfigError(f"{KEY}: exports runs with a configuration; leave it out.")
        if self.checkpoint == "best":
            check_keeps_best(trainer.state.best, f"{KEY}.checkpoint")

    def on_after_train(self, trainer: TrainerView) -> None:
        step = trainer.step
        if self.checkpoint == "best":
            step = best_step(trainer.state.best, f"{KEY}.checkpoint")
        folder = RunFolder(trainer.workspace or Path())

        def write() -> None:
            path = find_checkpoint(folder.checkpoints, step, f"{KEY}.checkpoint")
            trainer.context.check_lock()
            self.export.write(folder, path, (path / "config.yaml").read_text())
            if self.push is not None:
                # The line of the last step is written once the run has ended.
                hooks = [hook for hook in trainer.hooks if isinstance(hook, JsonlHook)]
                unwritten = [row for hook in hooks for row in hook.rows]
                push(f"{KEY}.push", self.push, folder, step, unwritten)

        ranks.on_main(write)
