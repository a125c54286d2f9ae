"""A trainer to try a configuration, which writes no run."""

from omegaconf import DictConfig

from launcher.config.resolve import copy_values
from launcher.hooks.init_from import InitFromHook
from launcher.jobs.micro_batch import with_micro_batch_size
from launcher.rundir.files import remove_empty
from launcher.rundir.folder import RunFolder
from launcher.train.build import build_trainer
from launcher.train.composed import Trainer
from launcher.train.length import with_max_steps


def trial_trainer(config: DictConfig) -> Trainer:
    """Build a trainer without the hooks that write, with the weights of `run.init_from`."""
    config = copy_values(with_max_steps(config))
    config.hooks, config.tracker = {}, {}
    folder = RunFolder(config.run.dir)
    config = with_micro_batch_size(config, folder)
    trainer = build_trainer(config, folder)
    trainer.hooks = [hook for hook in trainer.hooks if isinstance(hook, InitFromHook)]
    trainer.restore()
    remove_folders_of_hydra(folder)
    return trainer


def remove_folders_of_hydra(folder: RunFolder) -> None:
    remove_empty(folder.path, *folder.path.parents[:2])
