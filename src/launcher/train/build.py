"""Builds a trainer from a configuration. The only module that knows all parts."""

import inspect
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import nn

from launcher.config.checks import batch_fault
from launcher.config.schema import without_own_keys
from launcher.errors import ConfigError
from launcher.hooks.base import BaseHook, RunContext
from launcher.hooks.init_from import InitFromHook
from launcher.optim.precision import Precision
from launcher.run.folder import RunFolder
from launcher.run.provenance import git_state, versions
from launcher.run.ranks import Ranks
from launcher.run.rng import seed_all, set_deterministic
from launcher.strategies.base import Strategy
from launcher.strategies.step import StepPlan
from launcher.train.composed import Trainer
from launcher.train.startup import skip_dynamo_import

logger = logging.getLogger("launcher")


def build_trainer(
    config: DictConfig, folder: RunFolder, extra_hooks: list[BaseHook] | None = None, to_train: bool = True
) -> Trainer:
    """Build the trainer of a configuration, with all its parts. Nothing is written yet.

    Args:
        extra_hooks: placed before the configured ones.
        to_train: False to use the model only: no optimizer state, no schedule.

    Raises:
        ConfigError: a part cannot be built from the configuration.
    """
    settings = config.trainer
    set_deterministic(settings.deterministic)
    strategy, precision, plan = set_up_strategy(config)
    compiling = compile_options(settings.compile, strategy)
    seed_all(config.seed, strategy.ranks.rank)
    data = instantiate(without_own_keys(config.data))
    data.check()
    hooks = [*(extra_hooks or []), *_hooks(config)]
    loader = data.train_loader(
        seed=config.seed,
        micro_batch_size=plan.micro_batch_size,
        rank=strategy.ranks.rank,
        world_size=strategy.ranks.world_size,
        device=strategy.device,
    )
    trainer = Trainer(
        strategy=strategy,
        build_model=partial(instantiate, config.model),
        build_optimizer=partial(build_optimizer, config.optimizer) if to_train else _no_optimizer,
        build_scheduler=instantiate(config.scheduler, _partial_=True) if to_train and config.get("scheduler") else None,
        data_loader=loader,
        hooks=hooks,
        context=RunContext(
            val_loader=partial(
                data.val_loader,
                batch_size=plan.micro_batch_size,
                rank=strategy.ranks.rank,
                world_size=strategy.ranks.world_size,
                device=strategy.device,
            ),
            texts={"config.yaml": resolved_yaml(config)},
        ),
        precision=precision,
        max_steps=settings.max_steps,
        max_non_finite_grad_retries=settings.max_non_finite_grad_retries,
        max_skipped_steps=settings.max_skipped_steps,
        max_none_losses=settings.max_none_losses,
        workspace=folder.path,
        logger=logger,
    )
    if compiling is None:
        skip_dynamo_import()
    trainer.build()
    if compiling is not None:
        trainer.model.compile(**compiling)  # in place: the names of its tensors stay as they are
    return trainer


def compile_options(given: bool | DictConfig, strategy: Strategy) -> dict[str, Any] | None:
    """The arguments of torch.compile; None: nothing is compiled.

    Raises:
        ConfigError: an unknown backend, or a combination that is not supported.
    """
    if given is False:
        return None
    options: dict[str, Any] = {} if given is True else dict(given)
    backend, backends = options.get("backend", "inductor"), torch.compiler.list_backends(exclude_tags=())
    if backend not in backends:
        raise ConfigError(f"trainer.compile.backend={backend}: should be one of {', '.join(backends)}.")
    if options.get("mode", "default") != "default" and backend != "inductor":
        raise ConfigError(f"trainer.compile.mode={options['mode']}: backend={backend} has no modes; use default.")
    if options.get("fullgraph") and not strategy.compiles_whole:
        raise ConfigError(
            f"trainer.compile.fullgraph=true: strategy={strategy.name} runs between the model's blocks, which breaks "
            "the graph; use false, or strategy=none."
        )
    return options


def set_up_strategy(config: DictConfig) -> tuple[Strategy, Precision, StepPlan]:
    """The strategy on its device, the precision, and the plan of a step."""
    ranks = Ranks.from_env()
    precision: Precision = instantiate(config.precision)
    plan = step_plan(config, ranks.world_size, precision)
    strategy: Strategy = instantiate(config.strategy)
    strategy.setup(plan, precision, config.device)
    return strategy, precision, plan


def step_plan(config: DictConfig, world_size: int, precision: Precision) -> StepPlan:
    """Divide the global batch over ranks and micro-batches.

    Raises:
        ConfigError: the batch does not divide.
    """
    settings, batch = config.trainer, config.data.batch_size
    if fault := batch_fault(batch, settings.micro_batch_size, world_size):
        raise ConfigError(str(fault))
    share = batch // world_size
    micro = settings.micro_batch_size or share
    return StepPlan(
        grad_accum_steps=share // micro,
        max_grad_norm=settings.max_grad_norm or None,
        retry_non_finite=precision.retries(settings.max_non_finite_grad_retries),
        recompute_every={"none": 0, "full": 1}.get(
            settings.activation_checkpointing, settings.activation_checkpointing
        ),
        micro_batch_size=micro,
        no_sync_accumulate=settings.no_sync_accumulate,
    )


def build_optimizer(config: DictConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Call the configured factory with the model if its first parameter is called `model`, else with the trainable
    parameters, as for torch's own optimizers."""
    factory: Callable[..., torch.optim.Optimizer] = instantiate(config, _partial_=True)
    target = getattr(factory, "func", factory)
    first = next(iter(inspect.signature(target).parameters))
    if first == "model":
        return factory(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ConfigError(f"model._target_={type(model).__name__}: it has no parameter to train; use another model.")
    return factory(parameters)


def _no_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


def _hooks(config: DictConfig) -> list[BaseHook]:
    """The hooks of `hooks`, then the trackers."""
    nodes = [node for group in ("hooks", "tracker") for node in (config.get(group) or {}).values() if node is not None]
    hooks: list[BaseHook] = [instantiate(node) for node in nodes]
    if config.run.init_from is not None:
        source, outputs = Path(config.run.init_from).expanduser(), Path(config.paths.outputs)
        hooks.insert(0, InitFromHook(source, outputs, config.run.get("init_strict", True)))
    return hooks


def resolved_yaml(config: DictConfig) -> str:
    """The resolved configuration without `hydra`."""
    plain = {key: value for key, value in OmegaConf.to_container(config, resolve=True).items() if key != "hydra"}  # type: ignore[union-attr]
    return OmegaConf.to_yaml(OmegaConf.create(plain))


def code_state() -> dict[str, Any]:
    """The code's commit and the versions of libraries; a later resume reports what has changed."""
    return {"git": git_state(Path.cwd()), "versions": versions()}
