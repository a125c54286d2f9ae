"""`job.tasks` of job=evaluate: tasks of lm-eval for a language model of Hugging Face."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import nn

from launcher.errors import ConfigError
from launcher.models.huggingface import HuggingFaceModel
from launcher.process import deadline, signals
from launcher.rundir.files import expanded
from launcher.train.composed import Trainer

OURS = ("model", "model_args", "tasks", "task_manager", "device", "log_samples", "max_batch_size")
"""Arguments of `simple_evaluate` that are not options."""


def check_tasks(tasks: Sequence[str], options: Mapping[str, object], world_size: int) -> None:
    """Check what needs no model.

    Raises:
        ConfigError: lm-eval is not installed, an option or a file is unknown, or there are several
            ranks.
    """
    try:
        from lm_eval import simple_evaluate
    except ImportError as error:
        raise ConfigError(
            "job.tasks: needs the package lm_eval; pip install 'torch-launcher[lm-eval]'."
        ) from error
    if world_size > 1:
        raise ConfigError(
            f"job.tasks: lm-eval runs on one rank here, not {world_size}; add strategy=none"
            " dispatch.nproc=1."
        )
    known = [name for name in inspect.signature(simple_evaluate).parameters if name not in OURS]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"job.task_options.{name}: is not an option of lm_eval.simple_evaluate; there are"
                f" {', '.join(known)}."
            )
    for task in tasks:
        if _is_file(task) and not expanded(task).is_file():
            raise ConfigError(f"job.tasks=[{task}]: there is no such file.")


def evaluate_tasks(
    config: DictConfig, trainer: Trainer, tasks: Sequence[str], options: Mapping[str, object]
) -> dict[str, float]:
    """Return the metrics of tasks, as `<task>/<metric>`.

    Args:
        config: the checkpoint's configuration.
        trainer: has the model with the checkpoint's weights.
        tasks: names of lm-eval's tasks, or files of tasks.
        options: further arguments of `lm_eval.simple_evaluate`.
    Raises:
        ConfigError: the model is not a language model of Hugging Face, its tokenizer is not known,
            or a task is not.
        signals.SignalExit: a signal came.
    """
    # It takes some seconds.
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    model = trainer.unwrapped_model
    if not isinstance(model, HuggingFaceModel) or model.task != "causal_lm":
        raise ConfigError(
            "job.tasks: lm-eval needs a language model of Hugging Face; use model=huggingface or"
            " model=pretrained with model.task=causal_lm."
        )
    # It says that some of its arguments have no effect.
    logging.getLogger("lm_eval.models.huggingface").setLevel(logging.ERROR)
    manager, names = _found(tasks)
    options, precision = dict(options), trainer.precision
    default = config.trainer.get("micro_batch_size") or config.data.batch_size
    batch_size = options.pop("batch_size", None) or default
    inner: Any = model.model
    inner.eval()
    adapted = HFLM(
        pretrained=inner,
        tokenizer=_tokenizer(config),
        batch_size=batch_size,
        mixed_precision_dtype=precision.dtype if precision.is_mixed else None,
    )
    handle = inner.register_forward_pre_hook(_before_forward)
    try:
        results = simple_evaluate(
            model=adapted, tasks=names, task_manager=manager, log_samples=False, **options
        )
    finally:
        handle.remove()
    assert results is not None
    return dict(_flat(results["results"]))


def _before_forward(module: nn.Module, inputs: object) -> None:
    deadline.progress()
    signals.check()


def _is_file(task: str) -> bool:
    return task.endswith((".yaml", ".yml"))


def _found(tasks: Sequence[str]) -> tuple[object, list[str]]:
    """Return lm-eval's manager of tasks, and the names of the tasks.

    Raises:
        ConfigError: a task is not known, or a file has none.
    """
    from lm_eval.tasks import TaskManager

    files = {task: expanded(task).resolve() for task in tasks if _is_file(task)}
    folders: list[str | Path] = [str(folder) for folder in {file.parent for file in files.values()}]
    # To read all of lm-eval's own tasks takes seconds.
    manager = TaskManager(include_path=folders, include_defaults=len(files) < len(tasks))
    by_file: dict[Path, str] = {
        Path(entry.yaml_path).resolve(): name
        for name, entry in manager.task_index.items()
        if entry.yaml_path is not None
    }
    names = []
    for task in tasks:
        name = by_file.get(files[task]) if task in files else task
        if name is None:
            raise ConfigError(
                f"job.tasks=[{task}]: has no task of lm-eval, whose file has the keys task,"
                " dataset_path and output_type."
            )
        if name not in manager.task_index:
            raise ConfigError(
                f"job.tasks=[{task}]: lm-eval has no such task; `lm_eval ls tasks` lists them."
            )
        names.append(name)
    return manager, names


def _tokenizer(config: DictConfig) -> object:
    """Load the tokenizer of the data, or of the pretrained model.

    Raises:
        ConfigError: there is none.
    """
    from transformers import AutoTokenizer

    for key in ("data.tokenizer", "model.pretrained"):
        if (place := OmegaConf.select(config, key)) is not None:
            try:
                return AutoTokenizer.from_pretrained(str(place))
            except (OSError, ValueError, KeyError) as error:
                raise ConfigError(f"job.tasks: {key}={place} has no tokenizer.") from error
    raise ConfigError(
        "job.tasks: neither data.tokenizer nor model.pretrained names a tokenizer; add"
        " +data.tokenizer=FOLDER."
    )


def _flat(results: Mapping[str, Mapping[str, object]]) -> Any:
    """Yield the names and numbers of lm-eval's results, which has names such as `acc,none`."""
    for task, metrics in results.items():
        for key, value in metrics.items():
            metric, _, filter_name = key.partition(",")
            if filter_name and isinstance(value, int | float):
                shown = metric if filter_name == "none" else f"{metric}/{filter_name}"
                yield f"{task}/{shown}", float(value)
