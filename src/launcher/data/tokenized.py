"""The settings of sources that tokenize documents."""

from dataclasses import dataclass

from launcher.data.base import DataSource
from launcher.data.encoding import Encoder, Fields, no_tokenizer
from launcher.errors import ConfigError
from launcher.process.files import expand
from launcher.types import NonEmptyText, PositiveInt


@dataclass(kw_only=True, eq=False)
class TokenizedSource(DataSource):
    """A source of documents, which are tokenized.

    Args:
        tokenizer: a folder written by `save_pretrained` of a transformers tokenizer.
        seq_len: T, the maximum number of tokens in a row.
        text_field: the field with the text, on which a model is trained.
        prompt_field: the field with a prompt before this text, on which the model is not trained.
        messages_field: the field with a chat, a list of {role, content}; the assistant's turns are
            trained on.
        label_field: the field with the class of the text, for classification.
        num_classes: the number of classes, to which models refer.
        vocab_size: the number of tokens, to which models with new weights refer.
        cache: folder for what is made of the files.
    """

    tokenizer: str
    seq_len: PositiveInt = 128
    text_field: str = "text"
    prompt_field: str | None = None
    messages_field: str | None = None
    label_field: str | None = None
    num_classes: PositiveInt | None = None
    vocab_size: PositiveInt | None = None
    cache: NonEmptyText = "outputs/.tokens"

    def __post_init__(self) -> None:
        self.tokenizer_folder, self.cache_folder = expand(self.tokenizer), expand(self.cache)
        self.fields = Fields(
            self.text_field, self.prompt_field, self.messages_field, self.label_field
        )

    def check(self) -> None:
        self.fields.check()
        if not self.tokenizer_folder.is_dir():
            raise no_tokenizer(self.tokenizer_folder)
        if self.fields.label is not None and self.num_classes is None:
            raise ConfigError(
                f"data.label_field={self.fields.label}: needs data.num_classes, the number of"
                " classes."
            )

    def encoder(self, has_labels: bool = True) -> Encoder:
        return Encoder(self.tokenizer_folder, self.fields, self.num_classes, has_labels)

    def check_vocab_size(self, tokens: int) -> None:
        if self.vocab_size is not None and self.vocab_size < tokens:
            raise ConfigError(
                f"data.vocab_size={self.vocab_size}: the tokenizer of {self.tokenizer_folder} has"
                f" {tokens} tokens; set data.vocab_size={tokens} or more."
            )
