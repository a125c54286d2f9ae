"""Models of the transformers library: from a configuration, or with pretrained weights."""

import logging
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import torch

from launcher.config.messages import hint, reason
from launcher.config.tree import Tree
from launcher.errors import ConfigError, needing
from launcher.models.quiet_import import import_quietly
from launcher.process.files import expand

logger = logging.getLogger("launcher")

CLASSES = {
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "seq2seq_lm": "AutoModelForSeq2SeqLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "image_classification": "AutoModelForImageClassification",
}
"""Task to the class that builds its models."""
HUB_SECONDS = 10
"""Timeout in seconds of the request to the hub before a download."""


def from_config(task: str, settings: Tree, vocab_size: int | None, num_labels: int | None) -> Any:
    """Build a model with new weights; sizes by GPT-2's names fit other architectures too.

    Args:
        task: the kind of head.
        settings: `model_type`, and arguments of its configuration class.
        vocab_size: the vocabulary, for settings without one.
        num_labels: the classes, for settings without them.
    """
    transformers = library()
    model_type, settings, names = _check_settings(dict(settings))
    if "vocab_size" in names:
        if vocab_size is None and "vocab_size" not in settings:
            raise ConfigError(
                "model.vocab_size=null: new weights need the number of token values; set"
                " data.vocab_size to the tokenizer's."
            )
        settings.setdefault("vocab_size", vocab_size)
    if num_labels is not None:
        settings.setdefault("num_labels", num_labels)
    try:
        config = transformers.AutoConfig.for_model(model_type, **settings)
        # Before version 5, only the constructor fills tables that no checkpoint has (rotary
        # frequencies).
        with (
            torch.device("cpu")
            if int(transformers.__version__.split(".")[0]) < 5
            else nullcontext()
        ):
            return _automatic(task).from_config(config)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"model.config: {model_type} cannot be built from it: {reason(error)}."
        ) from error


def _check_settings(settings: Tree) -> tuple[str, Tree, set[str]]:
    """Return the architecture, its settings by its own names, and all names that it has."""
    transformers = library()
    model_type = settings.pop("model_type", None)
    if model_type not in transformers.CONFIG_MAPPING:
        raise ConfigError(
            f"model.config.model_type={model_type}: transformers {transformers.__version__} has no"
            f" such model{hint(str(model_type), transformers.CONFIG_MAPPING)}"
        )
    default = transformers.AutoConfig.for_model(model_type)
    names = {*default.to_dict(), *default.attribute_map, "num_labels", "decoder_start_token_id"}
    _translate(settings, names, transformers.GPT2Config.attribute_map)
    for key in settings:
        if key not in names:
            raise ConfigError(
                f"model.config.{key}: {model_type} has no such setting{hint(key, names)}"
            )
    return model_type, settings, names


def _translate(settings: Tree, names: set[str], gpt2_names: Mapping[str, str]) -> None:
    """Replace GPT-2's names by the standard ones that the architecture has; drop unknown nulls."""
    standard_names = {gpt2_name: standard for standard, gpt2_name in gpt2_names.items()}
    for key in [key for key in settings if key not in names]:
        if standard_names.get(key) in names:
            settings.setdefault(standard_names[key], settings.pop(key))
        elif settings[key] is None:
            del settings[key]


def from_pretrained(task: str, name: str, changes: Tree, num_labels: int | None) -> object:
    """Return a model with the weights of a folder or of the hub, in float32.

    A stored head with another number of labels is replaced by one with new weights.
    """
    automatic = _automatic(task)
    if num_labels is not None:
        changes = {"num_labels": num_labels, "ignore_mismatched_sizes": True, **changes}
    # The CPU is used inside a meta context too, since weights are read, not initialized.
    with torch.device("cpu"):
        model = _load(name, lambda path: automatic.from_pretrained(path, **changes))
    return model.float().train()


def _automatic(task: str) -> Any:
    """Return the class that builds a task's models."""
    transformers = library()
    # Each model imports this module, and it imports torchao, where that is installed.
    import_quietly("transformers.modeling_utils")
    return getattr(transformers, CLASSES[task])


def copy_tokenizer(name: str, folder: Path) -> None:
    """Save the tokenizer, or the image processor, of a pretrained model into a folder."""
    transformers = library()
    error: Exception | None = None
    for loader in ("AutoTokenizer", "AutoImageProcessor"):
        try:
            _load(name, getattr(transformers, loader).from_pretrained).save_pretrained(str(folder))
            return
        except Exception as failure:
            # The error may have any type: there is no such file, or it needs another package.
            error = error or failure
    logger.warning("The export has no tokenizer: %s.", reason(error or ConfigError(name)))


def _load(name: str, load: Callable[[str], object]) -> Any:
    """Call `load` with a folder; for a name on the hub, try its cache before the network."""
    folder = expand(name)
    if not folder.exists() and (folder.is_absolute() or name.startswith((".", "~"))):
        raise ConfigError(f"model.pretrained={name}: there is no such folder.")
    try:
        if folder.exists():
            with quiet():
                return load(str(folder))
        cached = _find_in_cache(name)
        if cached is not None:
            try:
                with quiet():
                    return load(cached)
            except OSError:
                # The cache has only some of the files.
                pass
        _check_hub(name)
        return load(name)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"model.pretrained={name}: cannot be loaded: {reason(error)}.") from error


def _find_in_cache(name: str) -> str | None:
    """Return this model's folder in the hub's cache, or None if it is not there.

    With `local_files_only`, transformers still asks the hub for adapters.
    """
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "config.json")
    return str(Path(file).parent) if isinstance(file, str) else None


def _check_hub(name: str) -> None:
    """Check that the hub answers, since its own client would retry for a minute."""
    from huggingface_hub import constants

    issue = "HF_HUB_OFFLINE is set"
    if not constants.HF_HUB_OFFLINE:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=HUB_SECONDS).close()
            return
        except HTTPError:
            # The hub answers.
            return
        except OSError as error:
            issue = f"{constants.ENDPOINT} cannot be reached ({getattr(error, 'reason', error)})"
    raise ConfigError(
        f"model.pretrained={name}: is not a folder here and not in the hub's cache, and {issue};"
        " use a folder written by save_pretrained, or download the model first (hf download)."
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress what reading and writing files prints between the lines of a log.

    These are progress bars, warnings of peft about names in transformers, and of DeepSpeed, which
    transformers imports, about the device.
    """

    def is_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    bars = library().utils.logging
    deepspeed = logging.getLogger("DeepSpeed")
    had_bars = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    deepspeed.addFilter(is_error)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        deepspeed.removeFilter(is_error)
        if had_bars:
            bars.enable_progress_bar()


def library() -> Any:
    with needing(
        "model=huggingface: needs the package transformers; pip install"
        " 'torch-launcher[huggingface]'."
    ):
        import transformers
    return transformers
