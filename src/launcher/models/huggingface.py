"""Models of Hugging Face transformers (extra `huggingface`), from a configuration or pretrained."""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from launcher.config.tree import Node, without
from launcher.errors import ConfigError
from launcher.models import liger as liger_kernels
from launcher.models import transformers_models
from launcher.models.base import (
    Model,
    Records,
    binary_records,
    class_records,
    count_targets,
    cross_entropy,
    outputs,
)
from launcher.models.lora import FrozenWeights, Lora
from launcher.models.supervised import longest_list
from launcher.types import PositiveInt

Batch = tuple[Tensor, Tensor] | Mapping[str, Tensor]
WRITES_TEXT = ("causal_lm", "seq2seq_lm")


class HuggingFaceModel(Model):
    """Any model of transformers for one of these tasks.

    A batch is a mapping with `labels`, for which the model computes its loss
    (`model(**batch).loss`). It may be a tuple: `(input, next tokens)` for task causal_lm, `(input,
    labels)` for the others. Labels of -100 do not count.

    Args:
        task: the kind of model: AutoModelForCausalLM, AutoModelForSequenceClassification, ...
        pretrained: a local folder of `save_pretrained`, or a name on the hub. Its weights are kept,
            in float32.
        config: without `pretrained`, a model to build with new weights, as `model_type` and
            arguments of its configuration class, e.g. {model_type: gpt2, n_layer: 2}. With
            `pretrained`, settings to change, e.g. {attn_pdrop: 0}.
        vocab_size: number of token values in the data, and of a model built from a `config` without
            this size.
        seq_len: longest input of the data. It is rejected if the model does not support it.
        num_labels: classes of a classifier. If the pretrained model has another number, its last
            layer is replaced.
        lora: train adapters instead of all weights, with `pretrained` only.
        liger: in training, compute the loss of a causal_lm by liger-kernel, without the logits of
            all tokens. It needs a GPU.
    Raises:
        ConfigError: transformers is not installed, there is no such model, configuration key or
            file, or the data do not fit the model.
    """

    later_keys = ("liger",)

    def __init__(
        self,
        task: Literal[
            "causal_lm",
            "masked_lm",
            "seq2seq_lm",
            "sequence_classification",
            "token_classification",
            "image_classification",
        ] = "causal_lm",
        pretrained: str | None = None,
        config: dict[str, Any] | None = None,
        vocab_size: PositiveInt | None = None,
        seq_len: PositiveInt | None = None,
        num_labels: PositiveInt | None = None,
        lora: Lora | None = None,
        liger: bool = False,
    ):
        super().__init__()
        if liger:
            liger_kernels.check(task)
        self.task = task
        self.has_pretrained_weights = pretrained is not None
        self.is_language_model = task in WRITES_TEXT
        self.model = _build(task, pretrained, config, vocab_size, num_labels)
        # A cache would grow again when a layer is recomputed.
        has_cache = (
            self.is_language_model or "use_cache" in signature(self.model.forward).parameters
        )
        self._options = {"use_cache": False} if has_cache else {}
        self._check_data(vocab_size, seq_len)
        self.liger = liger
        if liger:
            liger_kernels.apply(self.model)
        if lora is not None and lora.r:
            self._add_adapters(lora, pretrained)

    def _add_adapters(self, lora: Lora, pretrained: str | None) -> None:
        if pretrained is None:
            raise ConfigError(
                f"model.lora.r={lora.r}: adapters need a pretrained model; set model.pretrained."
            )
        with torch.device("cpu"):
            self.model = lora.apply(self.model)
        self.frozen = FrozenWeights(self, pretrained)

    def _check_data(self, vocab_size: int | None, seq_len: int | None) -> None:
        settings = self.model.config
        size = getattr(settings, "vocab_size", None)
        if vocab_size is not None and size is not None and vocab_size > size:
            raise ConfigError(
                f"model.vocab_size={vocab_size}: the model has only {size} token values; use data"
                " written with its own tokenizer."
            )
        longest = getattr(settings, "max_position_embeddings", None)
        if seq_len is not None and longest is not None and seq_len > longest:
            raise ConfigError(
                f"model.seq_len={seq_len}: the model reads at most {longest} tokens; e.g."
                f" data.seq_len={longest}."
            )

    def forward(self, batch: Batch) -> tuple[Tensor, Records]:
        """Compute the mean loss over the labels that count, and `accuracy`.

        While training, only a classifier has the accuracy.
        """
        if isinstance(batch, Mapping):
            return self._own_loss(batch)
        input, target = batch
        if self.liger and self.training:
            return self._loss_without_logits(input, target), {}
        if self.task != "causal_lm":
            return self._own_loss({self.model.main_input_name: input, "labels": target})
        logits = self.logits(input)
        loss = cross_entropy(logits.float(), target)
        return loss, {} if self.training else class_records(self, logits, target)

    def _own_loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Records]:
        labels = self._labels(batch)
        count = self.num_targets(batch)
        # Transformers divides by the number of labels, so without any, the loss would be NaN.
        some = labels.masked_fill(count == 0, 0)
        result = self.model(**{**batch, "labels": some}, **self._options)
        loss = result.loss * (count > 0)
        if self.training and not self.task.endswith("classification"):
            return loss, {}
        logits = result.logits
        target = labels
        if self.task == "causal_lm":
            logits = logits[:, :-1]
            target = labels[:, 1:]
        if not target.is_floating_point():
            return loss, class_records(self, logits, target)
        if self.model.config.problem_type == "multi_label_classification":
            return loss, binary_records(self, logits, target)
        return loss, outputs(self, logits.squeeze(-1), target)

    def _loss_without_logits(self, input: Tensor, target: Tensor) -> Tensor:
        count = count_targets(target)
        some = target.masked_fill(count == 0, 0)
        words = {self.model.main_input_name: input, "shift_labels": some}
        loss: Tensor = self.model(**words, **self._options).loss
        return loss * (count > 0)

    def logits(self, input: Tensor) -> Tensor:
        """Compute scores of the next token [B, T, vocabulary], or of the classes."""
        scores: Tensor = self.model(**{self.model.main_input_name: input}, **self._options).logits
        return scores

    def num_targets(self, batch: Batch) -> Tensor:
        if not isinstance(batch, Mapping):
            labels = batch[1]
        elif self.task == "causal_lm":
            # The first token is not predicted.
            labels = self._labels(batch)[:, 1:]
        else:
            labels = self._labels(batch)
        if labels.is_floating_point():
            return torch.full((), labels.numel(), device=labels.device)
        return count_targets(labels)

    def _labels(self, batch: Mapping[str, Tensor]) -> Tensor:
        if batch.get("labels") is None:
            keys = ", ".join(map(str, batch)) or "nothing"
            raise ConfigError(
                f"data: a batch for model.task={self.task} needs `labels`; this one has {keys}."
            )
        return batch["labels"]

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialize as transformers does for the architecture. Pretrained weights are kept."""
        if self.has_pretrained_weights:
            return
        for module in self.model.modules():
            # Transformers marks modules as initialized by the constructor, although on the meta
            # device it has initialized nothing.
            module.__dict__.pop("_is_hf_initialized", None)
        # Allocation on the device separates tied parameters.
        self.model.tie_weights()
        self.model.init_weights()

    @classmethod
    def write_export(
        cls,
        settings: Node,
        tensors: Mapping[str, Tensor],
        extra: Node,
        folder: Path,
        max_shard_size: str,
    ) -> dict[str, object]:
        """Write the files that `from_pretrained(folder)` reads, with merged adapters.

        Args:
            settings: this class's arguments in the run.
            tensors: this module's tensors, by name.
            extra: the entries of this module's `state_dict()` that are not tensors.
            folder: where the files are written.
            max_shard_size: largest size of a file, e.g. 5GB.
        Returns:
            The arguments of this class that load the written weights.
        """
        pretrained = settings.get("pretrained")
        lora = _lora(settings.get("lora"))
        dtype = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
        with torch.device("meta"):
            whole = cls(**{**settings, "lora": lora, "liger": False})
        model = whole.model
        options = dict[str, Any]()
        if lora.r:
            whole.frozen.set_extra_state(extra["frozen._extra_state"])
            whole.load_state_dict(dict(tensors), strict=False)
            model = model.merge_and_unload()
        else:
            options["state_dict"] = {k.removeprefix("model."): t for k, t in tensors.items()}
        with transformers_models.quiet():
            model.to(dtype).save_pretrained(str(folder), max_shard_size=max_shard_size, **options)
        if pretrained is not None:
            transformers_models.copy_tokenizer(str(pretrained), folder)
        # The adapters are merged, and a machine without a GPU may load the model.
        changed = {"lora": None, "liger": False}
        return {key: changed.get(key, value) for key, value in settings.items()}

    def shard_units(self) -> list[nn.Module]:
        """Return the layers that transformers does not split, else the longest list's."""
        names = set(getattr(self.model, "_no_split_modules", None) or ())
        layers = [part for part in self.model.modules() if type(part).__name__ in names]
        return layers or longest_list(self.model)


def _build(
    task: str,
    pretrained: str | None,
    config: Node | None,
    vocab_size: int | None,
    num_labels: int | None,
) -> Any:
    settings = dict(config or {})
    labels = num_labels if task.endswith("classification") else None
    if pretrained is None:
        if config is None:
            raise ConfigError(
                "model.pretrained: set a folder or a name, e.g. model.pretrained=gpt2; or, for new"
                " weights, model.config.model_type."
            )
        return transformers_models.from_config(task, settings, vocab_size, labels)
    if "model_type" in settings:
        raise ConfigError(
            "model.pretrained: model.config.model_type is set too, but pretrained weights have"
            " their own architecture; set only one of the two, e.g. with model=pretrained."
        )
    return transformers_models.from_pretrained(task, str(pretrained), settings, labels)


def _lora(node: Any) -> Lora:
    if node is None:
        return Lora()
    if isinstance(node, Lora):
        return node
    return Lora(**without(node, "_target_"))
