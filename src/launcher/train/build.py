"""Builds a trainer from a configuration. It is the only module that knows all parts."""

import inspect
import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from launcher.config.construct import instantiate
from launcher.config.explain import LIBRARY_ERRORS, library_error
from launcher.config.identity.record_entry import read_identity
from launcher.config.messages import describe_type, raise_issues
from launcher.config.run_config import RunConfig
from launcher.config.schema.checks import FOLLOWING, batch_issue
from launcher.config.schema.declared import declared, providing, setting
from launcher.config.schema.hook_dependencies import validation_issues
from launcher.config.schema.lane_rules import lane_issues, support_issue
from launcher.config.schema.matters_from import is_ours
from launcher.config.schema.run_length import with_epochs
from launcher.config.schema.validate import without_own_keys
from launcher.config.schema.value_types import check_call
from launcher.config.settings import CompileSettings, RunSettings, TrainerSettings
from launcher.config.tree import Node, Tree, pick, walk, without
from launcher.data.declared import is_hugging_face_stream, names_of_states
from launcher.data.iterable import length
from launcher.data.mixture_dataset import Mixture
from launcher.data.sampler import SkippingOrder
from launcher.errors import ConfigError
from launcher.hooks.base import BaseHook
from launcher.hooks.best import Best
from launcher.hooks.init_from import InitFromHook
from launcher.hooks.jsonl import JsonlHook
from launcher.hooks.media import MediaHook
from launcher.hooks.metric_schedule import MetricScheduleHook
from launcher.hooks.sources import SourcesHook
from launcher.hooks.view import RunContext
from launcher.models.declared import check_declared
from launcher.models.output import check_parameters
from launcher.optim.fused import kernels_for_any_shard
from launcher.optim.optimizers import check_optimizer
from launcher.optim.precision import Precision
from launcher.optim.schedulers import check_scheduler, needs_metric
from launcher.process import collector
from launcher.process.files import expand
from launcher.process.ranks import Ranks
from launcher.process.rng import seed_all, set_deterministic
from launcher.resume.common_steps import comparable
from launcher.resume.forking import Fork
from launcher.resume.shared import SharedStart
from launcher.rundir.folder import RunFolder
from launcher.rundir.signing import sign_text
from launcher.strategies.base import Strategy
from launcher.strategies.own_steps import leave_steps
from launcher.strategies.step import StepPlan
from launcher.trackers.base import is_tracker
from launcher.train.composed import Trainer, captures_graphs
from launcher.train.events import check_hook
from launcher.train.packing import check_packing

logger = logging.getLogger("launcher")


def build_trainer(
    config: RunConfig,
    folder: RunFolder,
    extra_hooks: list[BaseHook] | None = None,
    to_train: bool = True,
    has_loader: bool = True,
) -> Trainer:
    """Build the trainer of a configuration. Nothing of it is written yet.

    Args:
        config: the configuration.
        folder: the run's folder.
        extra_hooks: hooks that are called before the configured ones.
        to_train: whether it will train. With False, only the model is needed, so the optimizer has
            no state, and there is no schedule.
        has_loader: False: the training data are not read.
    """
    plain, settings = config.plain, config.trainer
    set_deterministic(settings.deterministic)
    strategy, precision = set_up_strategy(config)
    compiling = compile_options(settings.compile, strategy)
    seed_all(config.seed, strategy.ranks.rank)
    data = instantiate(without_own_keys(plain["data"]), "data")
    data.check()
    if to_train:
        _check_validation(plain, data)
    schedule: Any = (plain.get("scheduler") or None) if to_train else None
    hooks, names = _hooks(config, schedule)
    hooks = [*(extra_hooks or []), *hooks]
    loader = _train_loader(data, strategy) if has_loader else None
    if loader is not None:
        if isinstance(loader.dataset, Mixture):
            intervals = [
                setting(node, "interval") for node in providing(plain.get("hooks"), "train/")
            ]
            hooks.insert(0, SourcesHook(next(iter(intervals), 10)))
        schedule = in_steps(schedule, loader.dataset, plain["data"]["batch_size"])
    text = config.stored_yaml
    texts = {"config.yaml": text if strategy.ranks.rank else sign_text(text)}
    trainer = Trainer(
        strategy=strategy,
        build_model=lambda: precision.convert(build_model(plain["model"])),
        build_optimizer=partial(
            _build_optimizer, plain["optimizer"] if to_train else None, strategy
        ),
        build_scheduler=partial(build_scheduler, schedule) if schedule else None,
        data_loader=() if loader is None else loader,
        hooks=hooks,
        context=replace(_context(config, data, strategy, loader, texts), hook_names=names),
        precision=precision,
        settings=settings if to_train else replace(settings, max_steps=1),
        workspace=folder.path,
        logger=logger,
    )
    trainer.build()
    if loader is not None:
        check_packing(trainer, loader.dataset, loader.micro_batch_size)
    if compiling is not None:
        trainer.compile(compiling)
    collector.resume()
    return trainer


def _placement(strategy: Strategy) -> dict[str, Any]:
    ranks = strategy.ranks
    return {"rank": ranks.rank, "world_size": ranks.world_size, "device": strategy.device}


def _train_loader(data: Any, strategy: Strategy) -> Any:
    plan = strategy.plan
    lanes = strategy.lanes
    order = {} if lanes is None else {"lanes": lanes}
    loader = data.train_loader(
        seed=plan.seed, micro_batch_size=plan.micro_batch_size, **_placement(strategy), **order
    )
    if data.skip and not isinstance(getattr(loader, "order", None), SkippingOrder):
        raise ConfigError(
            f"data.skip={data.skip}: {type(data).__name__} makes a loader of its own, which passes"
            " over no steps; leave it out."
        )
    return loader


def _context(
    config: RunConfig, data: Any, strategy: Strategy, loader: Any, texts: dict[str, str]
) -> RunContext:
    lanes = strategy.plan.lanes
    size = strategy.plan.micro_batch_size
    if data.val_batch_size is not None:
        # With lanes, a batch is the same on any number of ranks.
        size = max(1, data.val_batch_size // (lanes or strategy.ranks.world_size))
    arguments = _placement(strategy) | {"batch_size": size}
    settings = None if loader is None else _settings_that_train(config, data, loader)
    return RunContext(
        val_loader=partial(data.val_loader, **arguments),
        test_loader=partial(data.test_loader, **arguments),
        val_names=tuple(data.val_names),
        data=data,
        texts=texts,
        fork=_fork(config.run, config.outputs, config.stored_yaml),
        settings=settings,
        shared=_find_shared_start(config, settings, texts),
        leaves={int(step): ids for step, ids in (config.run.leaves or {}).items()},
    )


def compile_options(
    setting: bool | dict[str, object], strategy: Strategy
) -> dict[str, object] | None:
    """Return the arguments of torch.compile, or None if nothing is compiled."""
    if setting is False:
        return None
    options: dict[str, Any] = {"dynamic": CompileSettings.dynamic}
    options |= {} if setting is True else setting
    backend = options.get("backend", "inductor")
    backends = torch.compiler.list_backends(exclude_tags=())
    if backend not in backends:
        raise ConfigError(
            f"trainer.compile.backend={backend}: should be one of {', '.join(backends)}."
        )
    if options.get("mode", "default") != "default" and backend != "inductor":
        raise ConfigError(
            f"trainer.compile.mode={options['mode']}: backend={backend} has no modes; use default."
        )
    if options.get("fullgraph") and not strategy.compiles_whole:
        raise ConfigError(
            f"trainer.compile.fullgraph=true: strategy={strategy.name} works between the blocks,"
            " which breaks the graph; use false, or strategy=none."
        )
    if captures_graphs(options, strategy.device) and strategy.plan.grad_accum_steps > 1:
        raise ConfigError(
            f"trainer.compile={options}: records CUDA graphs, in which each of the step's"
            f" {strategy.plan.grad_accum_steps} micro-batches overwrites the gradients of the one"
            " before; use mode=max-autotune-no-cudagraphs or default, or"
            " trainer.micro_batch_size=null."
        )
    return options


def set_up_strategy(config: RunConfig) -> tuple[Strategy, Precision]:
    ranks = Ranks.from_env()
    plain = config.plain
    settings = config.trainer
    precision: Precision = instantiate(plain["precision"], "precision")
    plan = step_plan(settings, plain["data"]["batch_size"], ranks.world_size, precision)
    plan = replace(plan, seed=config.seed, lanes=settings.lanes)
    strategy: Strategy = instantiate(plain["strategy"], "strategy")
    if declared(plain["model"]["_target_"], "owns_optimizers"):
        strategy = leave_steps(strategy)
    if settings.lanes is not None and not vars(type(strategy)).get("supports_lanes"):
        raise ConfigError(str(support_issue(settings.lanes, strategy.name)))
    strategy.setup(plan, precision, config.device)
    if settings.lanes is not None and strategy.device.type == "cpu":
        # Kernels divide their sums among threads, whose number would otherwise depend on the ranks.
        torch.set_num_threads(1)
    return strategy, precision


def step_plan(
    settings: TrainerSettings, batch: int, world_size: int, precision: Precision
) -> StepPlan:
    """Divide the global batch over the ranks, and a rank's share into the largest micro-batches."""
    raise_issues(lane_issues(settings, batch, world_size))
    issue = batch_issue(batch, world_size)
    if issue:
        raise ConfigError(str(issue))
    share = batch // world_size
    micro_batch_size = settings.micro_batch_size
    # Before, `auto` has become a number (see `launcher.train.micro_batch`).
    assert not isinstance(micro_batch_size, str)
    largest = batch // settings.lanes if settings.lanes else micro_batch_size
    sizes = range(min(largest or share, share), 0, -1)
    micro = next(size for size in sizes if share % size == 0)
    return StepPlan(
        grad_accum_steps=share // micro,
        max_grad_norm=settings.max_grad_norm or None,
        retry_non_finite=precision.retries(settings.max_non_finite_grad_retries),
        recompute_every=settings.recompute_every,
        micro_batch_size=micro,
        sync_every_micro_batch=settings.sync_every_micro_batch,
    )


def build_model(node: Node) -> nn.Module:
    model = instantiate(node, "model")
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model._target_={node['_target_']}: should make a torch.nn.Module; it made"
            f" {describe_type(model)}."
        )
    if getattr(model.forward, "__func__", None) is nn.Module.forward:
        raise ConfigError(f"model._target_={node['_target_']}: the class has no forward(); add it.")
    check_call(f"model: {type(model).__name__}.forward", model.forward, "batch")
    check_declared(model)
    check_parameters(model)
    return model


def build_optimizer(node: Node, model: nn.Module) -> Optimizer:
    """Call the configured optimizer factory.

    It gets the model if that is the name of its first parameter, else the trainable parameters, as
    torch's own optimizers take them.
    """
    factory: Callable[..., Optimizer] = instantiate(node, "optimizer", _partial_=True)
    takes_model = _parameters(factory)[:1] == ["model"]
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not takes_model and not parameters:
        raise ConfigError(
            f"model._target_={type(model).__name__}: has no parameter to train; use another model."
        )
    key = f"optimizer._target_={node['_target_']}"
    name, argument = ("model", model) if takes_model else ("parameters", parameters)
    optimizer: Optimizer = _call(key, factory, name, argument)
    check_optimizer(optimizer, key)
    return optimizer


def _call(
    key: str, factory: Callable[..., Any], name: str, argument: object, **options: object
) -> Any:
    """Call a factory with the argument of this name."""
    check_call(key, factory, name, **options)
    try:
        return factory(argument, **options)
    except LIBRARY_ERRORS as error:
        why = library_error(error)
        if why is None:
            raise
        raise ConfigError(f"{key}: {why}") from error


def _parameters(factory: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(getattr(factory, "func", factory)).parameters)


def build_scheduler(options: Node, optimizer: Optimizer) -> Any:
    """Build the scheduler of a node `scheduler`."""
    metric = options.get("metric")
    factory = instantiate(without(options, "metric"), "scheduler", _partial_=True)
    mode = {}
    if metric is not None and "mode" in _parameters(factory):
        mode["mode"] = schedule_metric(metric, options.get("mode", "auto")).mode
    key = f"scheduler._target_={options['_target_']}"
    scheduler: object = _call(key, factory, "optimizer", optimizer, **mode)
    check_scheduler(scheduler, key)
    name = type(scheduler).__name__
    if needs_metric(scheduler) and metric is None:
        raise ConfigError(
            f"scheduler.metric: {name} follows a logged metric; e.g. +scheduler.metric=val/loss."
        )
    if metric is not None and not needs_metric(scheduler):
        raise ConfigError(
            f"scheduler.metric={metric}: {name} does not follow a metric; remove the key."
        )
    return scheduler


def in_steps(schedule: object, dataset: object, batch_size: int) -> object:
    """Return the options of a schedule with numbers of epochs as numbers of steps, rounded up."""
    size = length(dataset)

    def steps(epochs: Fraction, key: str) -> int:
        if size is None:
            raise ConfigError(
                f"scheduler.{key}: the training data have no length; set it in steps."
            )
        return math.ceil(epochs * size / batch_size)

    return with_epochs(schedule, steps)


def _build_optimizer(node: Node | None, strategy: Strategy, model: nn.Module) -> Optimizer:
    if node is None:
        return torch.optim.SGD(model.parameters(), lr=0.0)
    with kernels_for_any_shard() if strategy.lanes is not None else nullcontext():
        return build_optimizer(node, model)


def schedule_metric(metric: str, mode: Any) -> Best:
    return Best(metric, mode, keys=("scheduler.metric", "scheduler.mode"))


def _check_validation(plain: Tree, data: Any) -> None:
    """Check that the data have a validation set if a hook follows one of its metrics."""
    issues = list(validation_issues(*pick(plain, (*FOLLOWING, "data"))))
    if issues and not data.val_names and data.val_dataset() is None:
        raise ConfigError(*map(str, issues))


def _fork(run: RunSettings, outputs: str, config: str) -> Fork | None:
    if run.fork_from is None:
        return None
    return Fork(run.fork_from, expand(outputs), tuple(run.fork_without or ()), config)


def _find_shared_start(
    config: RunConfig, settings: Tree | None, texts: dict[str, str]
) -> SharedStart | None:
    if not config.run.share_prefix or config.run.fork_from is not None or settings is None:
        return None
    if "oc.env" in str(settings["hooks"]):
        # A variable is stored as it is written, and may have had another value.
        return None
    return SharedStart(settings, texts)


def _settings_that_train(config: RunConfig, data: Any, loader: Any) -> Tree | None:
    """Return what decides the numbers of the steps, or None if the run has no identity."""
    plain = config.of_the_run
    entry = read_identity(config.plain["run"])
    if entry is None:
        return None
    # Workers may draw the random numbers, and have a copy of the state, of a dataset of the user.
    is_seeded = getattr(data, "seed_samples", False)
    has_state = bool(names_of_states(loader.dataset, getattr(loader, "collate", None)))
    draws = not is_seeded or has_state or is_hugging_face_stream(loader.dataset)
    targets = [
        value for path, value in walk(plain["data"], lists=True) if path.endswith("_target_")
    ]
    counts_workers = draws and not all(map(is_ours, targets))
    return comparable(entry[1], plain, plain["trainer"]["max_steps"], counts_workers)


def _hooks(config: RunConfig, schedule: Node | None) -> tuple[list[BaseHook], dict[int, str]]:
    """Build the configured hooks, those that write metrics and media, and those that keys need.

    Returns:
        The hooks, and the keys of the configured ones by their ids.
    """
    hooks = list[BaseHook]()
    others = list[BaseHook]()
    names: dict[int, str] = {}
    for group, made in (("hooks", hooks), ("tracker", others)):
        for name, node in (config.plain.get(group) or {}).items():
            if node is not None and not is_tracker(node):
                hook = instantiate(node, f"{group}.{name}")
                check_hook(hook, f"{group}.{name}")
                made.append(hook)
                names[id(hook)] = f"{group}.{name}"
    jsonl = JsonlHook()
    # A tracker reads the media of a step once it sees the line of a later step.
    hooks += [
        *([] if any(isinstance(hook, MediaHook) for hook in hooks) else [MediaHook()]),
        jsonl,
        *others,
    ]
    run = config.run
    if run.init_from is not None:
        hooks.insert(0, InitFromHook(expand(run.init_from), Path(config.outputs), run.init_strict))
    if schedule and schedule.get("metric") is not None:
        hooks.append(
            MetricScheduleHook(schedule_metric(schedule["metric"], schedule.get("mode", "auto")))
        )
    return hooks, names
