"""A trainer to try a configuration, which writes no run."""

from launcher.config.run_config import RunConfig
from launcher.hooks.init_from import InitFromHook
from launcher.train.build import build_trainer
from launcher.train.composed import Trainer
from launcher.train.length import with_max_steps
from launcher.train.micro_batch import with_micro_batch_size


def trial_trainer(config: RunConfig) -> Trainer:
    """Build a trainer without the hooks that write, with the weights of `run.init_from`."""
    config = with_max_steps(config).replace({"hooks": {}, "tracker": {}})
    config = with_micro_batch_size(config, config.folder)
    trainer = build_trainer(config, config.folder)
    trainer.hooks = [hook for hook in trainer.hooks if isinstance(hook, InitFromHook)]
    trainer.restore()
    return trainer
