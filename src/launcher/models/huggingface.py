"""Causal language models of Hugging Face transformers (the extra `huggingface`), from a configuration or pretrained."""

import difflib
import logging
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from launcher.errors import ConfigError
from launcher.models.base import Model, Records, accuracy, count_targets, cross_entropy, outputs
from launcher.models.supervised import longest_list
from launcher.types import PositiveInt

logger = logging.getLogger("launcher")


class HuggingFaceCausalLM(Model):
    """Any model that `AutoModelForCausalLM` knows, trained with our loss on our batches.

    Args:
        vocab_size: number of token values in the data; also the size of a model built from a `config` without one.
        seq_len: longest input of the data; refused if the model does not support it.
        pretrained: a local folder of `save_pretrained`, or a name on the hub. Its weights are kept, in float32.
        config: a model to build with new weights: `model_type` and arguments of its configuration class, e.g.
            {model_type: gpt2, n_layer: 2}. Exactly one of `pretrained` and `config` is set.
        gradient_checkpointing: compute activations again in the backward pass instead of keeping them.
    Raises:
        ConfigError: transformers is not installed; there is no such model, configuration key or file; the data do not
            fit the model.
    """

    is_language_model = True

    def __init__(
        self,
        vocab_size: PositiveInt,
        seq_len: PositiveInt | None = None,
        pretrained: str | None = None,
        config: dict[str, Any] | None = None,
        gradient_checkpointing: bool = False,
    ):
        super().__init__()
        if (pretrained is None) == (config is None):
            raise ConfigError(
                "model.pretrained: needs a folder or a name, e.g. model.pretrained=gpt2, or model.config a model_type; "
                "one of the two, and not both."
            )
        self.model: Any = (
            _from_pretrained(str(pretrained)) if config is None else _from_config(_plain(config), vocab_size)
        )
        self.has_pretrained_weights = config is None
        self._check_data(vocab_size, seq_len)
        if gradient_checkpointing:
            # re-entrant checkpointing loses gradients under DDP and FSDP
            enable = getattr(self.model, "activation_checkpointing_enable", self.model.gradient_checkpointing_enable)
            enable({"use_reentrant": False})

    def _check_data(self, vocab_size: int, seq_len: int | None) -> None:
        settings = self.model.config
        if vocab_size > settings.vocab_size:
            raise ConfigError(
                f"model.vocab_size={vocab_size}: the model has only {settings.vocab_size} token values; use data "
                "written with its own tokenizer."
            )
        longest = getattr(settings, "max_position_embeddings", None)
        if seq_len is not None and longest is not None and seq_len > longest:
            raise ConfigError(
                f"model.seq_len={seq_len}: the model reads at most {longest} tokens; e.g. data.seq_len={longest}."
            )

    def forward(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Records]:
        """Mean cross entropy in nats per token.

        Args:
            batch: input [B, T] int64 and target [B, T] int64, the next tokens; targets of -100 do not count.
        Returns:
            The loss; records are empty in training; `accuracy`, `logits` and `targets` in evaluation.
        """
        input, target = batch
        logits = self.logits(input)
        loss = cross_entropy(logits.flatten(0, 1).float(), target.flatten())
        if self.training:
            return loss, {}
        return loss, {"accuracy": accuracy(logits, target)} | outputs(self, logits, target)

    def logits(self, input: Tensor) -> Tensor:
        """input [B, T] int64 -> scores of the next token [B, T, vocabulary]."""
        scores: Tensor = self.model(input_ids=input, use_cache=False).logits
        return scores

    def num_targets(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return count_targets(batch[1])

    @torch.no_grad()
    def init_weights(self) -> None:
        """transformers' own rule for the architecture; pretrained weights stay as they are."""
        if self.has_pretrained_weights:
            return
        for module in self.model.modules():
            # transformers marks modules as initialized by the constructor, which on the meta device drew nothing
            module.__dict__.pop("_is_hf_initialized", None)
        self.model.tie_weights()  # the allocation on the device has separated tied parameters
        self.model.init_weights()

    @classmethod
    def write_export(cls, settings: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> None:
        """Write what `AutoModelForCausalLM.from_pretrained(folder)` reads: configuration, weights under the names of
        transformers, and the tokenizer of a pretrained model.

        Args:
            settings: this class's arguments, as the run had them.
            tensors: this module's, by name.
        """
        pretrained = settings.get("pretrained")
        with torch.device("meta"):
            model = (
                _from_config(_plain(settings["config"]), settings["vocab_size"])
                if pretrained is None
                else _from_settings(str(pretrained))
            )
        model.to(next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()))
        own = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        model.save_pretrained(str(folder), state_dict=own)
        if pretrained is not None:
            _copy_tokenizer(str(pretrained), folder)

    def shard_units(self) -> list[nn.Module]:
        """The decoder layers."""
        names = set(getattr(self.model, "_no_split_modules", None) or ())
        layers = [part for part in self.model.modules() if type(part).__name__ in names]
        return layers or longest_list(self.model)


def _from_config(settings: dict[str, Any], vocab_size: int) -> Any:
    transformers = _transformers()
    model_type = settings.pop("model_type", None)
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if model_type not in known:
        raise ConfigError(
            f"model.config.model_type={model_type}: transformers {transformers.__version__} has no such causal "
            f"language model{_hint(str(model_type), known)}; e.g. model.config.model_type=gpt2."
        )
    default = transformers.AutoConfig.for_model(model_type)
    names = {*default.to_dict(), *default.attribute_map}
    for key in settings:
        if key not in names:
            raise ConfigError(f"model.config.{key}: {model_type} has no such setting{_hint(key, names)}.")
    settings.setdefault("vocab_size", vocab_size)
    try:
        config = transformers.AutoConfig.for_model(model_type, **settings)
        # Before version 5, tables that no checkpoint has (rotary frequencies) are filled by the constructor alone.
        with torch.device("cpu") if int(transformers.__version__.split(".")[0]) < 5 else nullcontext():
            return transformers.AutoModelForCausalLM.from_config(config)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model.config: {model_type} cannot be built from it: {_first_line(error)}.") from error


def _from_pretrained(name: str) -> Any:
    transformers = _transformers()
    where = Path(name).expanduser()
    if not where.exists() and (where.is_absolute() or name.startswith(".")):
        raise ConfigError(f"model.pretrained={name}: there is no such folder.")
    try:
        with torch.device("cpu"):  # also inside a meta context: the weights are read, not drawn
            model = transformers.AutoModelForCausalLM.from_pretrained(_place(name))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.pretrained={name}: cannot be loaded: {_first_line(error)}.") from error
    return model.float().train()  # float32, whatever the file has: `precision` chooses the compute dtype


def _from_settings(name: str) -> Any:
    """The model of a pretrained one's configuration, with new weights."""
    transformers = _transformers()
    try:
        return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(_place(name)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.pretrained={name}: cannot be loaded: {_first_line(error)}.") from error


def _copy_tokenizer(name: str, folder: Path) -> None:
    try:
        _transformers().AutoTokenizer.from_pretrained(_place(name)).save_pretrained(str(folder))
    except Exception as error:  # of many kinds: no tokenizer there, or one that needs another package
        logger.warning("The export has no tokenizer: %s.", _first_line(error))


def _place(name: str) -> str:
    """A folder, or a name on the hub."""
    folder = Path(name).expanduser()
    return str(folder) if folder.exists() else name


def _transformers() -> Any:
    try:
        import transformers
        import transformers.models.auto.modeling_auto  # transformers imports its submodules lazily
    except ImportError as error:
        raise ConfigError(
            "model=huggingface: needs the package transformers; pip install 'torch-launcher[huggingface]'."
        ) from error
    return transformers


def _plain(config: Any) -> dict[str, Any]:
    if OmegaConf.is_config(config):
        config = OmegaConf.to_container(config, resolve=True)
    return dict(config) if isinstance(config, Mapping) else {"model_type": config}


def _hint(name: str, choices: Any) -> str:
    near = difflib.get_close_matches(name, [str(choice) for choice in choices], n=1)
    return f", did you mean {near[0]}" if near else ""


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
