"""Encode a record as its token ids, the ones among them that are targets, and its class."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from launcher.data.record_readers import Values
from launcher.errors import ConfigError, needing

IGNORED = -100
"""The target value that is left out of losses and metrics."""


@dataclass
class Document:
    ids: np.ndarray
    """int64 [N]."""
    is_target: np.ndarray | None = None
    """bool [N], or None if all tokens are targets."""
    label: int | None = None


@dataclass
class Fields:
    text: str = "text"
    prompt: str | None = None
    messages: str | None = None
    label: str | None = None

    def names(self) -> list[str]:
        if self.messages is not None:
            return [self.messages]
        return [name for name in (self.prompt, self.text, self.label) if name is not None]

    def check(self) -> None:
        names = {"prompt": self.prompt, "messages": self.messages, "label": self.label}
        chosen = [f"data.{part}_field" for part, name in names.items() if name is not None]
        if len(chosen) > 1:
            raise ConfigError(
                f"{chosen[1]}: {chosen[0]} is set too, and only one may be; e.g. {chosen[0]}=null."
            )


def no_tokenizer(folder: Path, key: str = "data.tokenizer") -> ConfigError:
    return ConfigError(
        f"{key}={folder}: has no tokenizer; AutoTokenizer.from_pretrained(...)"
        ".save_pretrained(FOLDER) of the package transformers writes one."
    )


class Encoder:
    """Encodes documents with the tokenizer in a folder.

    Without `has_labels`, the field with the class is not read, and the class is `IGNORED`.
    """

    def __init__(
        self, folder: Path, fields: Fields, num_classes: int | None, has_labels: bool = True
    ):
        with needing(
            "data.tokenizer: needs the package transformers; pip install"
            " 'torch-launcher[huggingface]'."
        ):
            from transformers import AutoTokenizer
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise no_tokenizer(folder) from error
        if fields.messages is not None and not self.tokenizer.chat_template:
            raise ConfigError(
                f"data.messages_field={fields.messages}: the tokenizer of {folder} has no chat"
                " template; use the tokenizer of a chat model."
            )
        self.fields = fields
        self.num_classes = num_classes
        self.has_labels = has_labels
        self.end: int | None = self.tokenizer.eos_token_id

    @property
    def pad(self) -> int:
        """The token that fills rows; it is never a target."""
        pad_id = self.tokenizer.pad_token_id
        return int(pad_id if pad_id is not None else self.end or 0)

    def names(self) -> list[str]:
        label = None if self.has_labels else self.fields.label
        return [name for name in self.fields.names() if name != label]

    def __call__(self, record: Values, where: str) -> Document:
        if self.fields.messages is not None:
            return self._chat(record, where)
        text = _field(record, "text", self.fields.text, str, where)
        if self.fields.label is not None:
            label = self._label(record, where) if self.has_labels else IGNORED
            return Document(self._ids(text, special=True), label=label)
        if self.fields.prompt is None:
            return Document(self._add_end(self._ids(text, special=True)))
        prompt = self._ids(_field(record, "prompt", self.fields.prompt, str, where), special=True)
        if len(prompt) and prompt[-1] == self.end:
            prompt = prompt[:-1]
        ids = np.concatenate([prompt, self._add_end(self._ids(text, special=False))])
        return Document(ids, np.arange(len(ids)) >= len(prompt))

    def _ids(self, text: str, special: bool) -> np.ndarray:
        encoded = self.tokenizer(text, add_special_tokens=special, verbose=False)
        return np.array(encoded["input_ids"], dtype=np.int64)

    def _add_end(self, ids: np.ndarray) -> np.ndarray:
        if self.end is None or (len(ids) and ids[-1] == self.end):
            return ids
        return np.append(ids, self.end)

    def _label(self, record: Values, where: str) -> int:
        label = _field(record, "label", str(self.fields.label), int, where)
        if not 0 <= label < (self.num_classes or 0):
            raise ConfigError(
                f"data.num_classes={self.num_classes}: {where} has the label {label}; labels are 0"
                " to data.num_classes - 1."
            )
        return int(label)

    def _chat(self, record: Values, where: str) -> Document:
        """Encode a chat. The assistant's turns are targets, with the tokens that end them."""
        messages = _field(record, "messages", str(self.fields.messages), list, where)
        try:
            text = self._template(messages, answer=False)
            spans = [
                (
                    self._template(messages[:i], answer=True),
                    self._template(messages[: i + 1], answer=False),
                )
                for i, message in enumerate(messages)
                if message["role"] == "assistant"
            ]
        # Errors may be jinja's, raised by the template itself, or missing roles.
        except Exception as error:
            raise ConfigError(
                f"data.messages_field: {where}: the chat template rejects it ({error}); a message"
                ' is {"role": "user", "content": "..."}.'
            ) from error
        if not all(text.startswith(part) for span in spans for part in span):
            raise ConfigError(
                f"data.messages_field: {where}: the chat template rewrites earlier turns when a"
                " turn is added; use prompt_field and text_field."
            )
        encoded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        offsets = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        is_target = np.zeros(len(offsets), dtype=bool)
        for before, after in spans:
            is_target |= (offsets[:, 0] >= len(before)) & (offsets[:, 1] <= len(after))
        return Document(np.array(encoded["input_ids"], dtype=np.int64), is_target)

    def _template(self, messages: list[Values], answer: bool) -> str:
        if not messages:
            return ""
        template = self.tokenizer.apply_chat_template
        return str(template(messages, tokenize=False, add_generation_prompt=answer))


def _field(record: Values, name: str, field: str, cls: type, where: str) -> Any:
    value = record.get(field)
    if value is None:
        raise ConfigError(
            f"data.{name}_field={field}: {where}: has no such field; it has {', '.join(record)}."
        )
    if not isinstance(value, cls) or isinstance(value, bool):
        raise ConfigError(
            f"data.{name}_field={field}: {where}: should be of type {cls.__name__}, and is of type"
            f" {type(value).__name__}."
        )
    return value


def tokenizer_digest(folder: Path) -> str:
    """Hash the tokenizer's files in a folder, which may also hold a model."""
    digest = xxhash.xxh3_64()
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in (".json", ".jinja", ".txt", ".model", ".vocab"):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
