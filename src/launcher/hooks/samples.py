"""Logs text that a language model writes while it is trained."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from launcher.config.messages import reason
from launcher.errors import ConfigError
from launcher.hooks.evaluation_mode import evaluating, without_compilation
from launcher.hooks.interval import IntervalHook
from launcher.hooks.view import TrainerView
from launcher.models.declared import declared_method
from launcher.process import ranks
from launcher.process.files import replace_file
from launcher.process.printable import printable
from launcher.strategies.weights import unwrap
from launcher.types import NonNegativeFloat, NonNegativeInt, PositiveInt

BYTES = 256
"""The vocabulary of `data=text`: the bytes of UTF-8."""


class SamplesHook(IntervalHook):
    """Continues prompts, logs the samples, and writes `samples/step-<step>.txt`.

    The model needs `logits(tokens [B, T]) -> [B, T, vocabulary]`, as `model=gpt` has. Random
    numbers come from a separate generator, so training does not change, and equal weights write
    equal text.

    Args:
        prompts: one or several texts. If tokens are not bytes and there is no `encode`, they are
            token numbers, `17 4 99`.
        interval: in optimizer steps. The last step writes too.
        max_new_tokens: the number of tokens to write for each prompt.
        temperature: divisor of the scores. With 0, always the most probable token.
        top_k: choose among this many tokens. Default None: all.
        seed: seed of the generator for the first prompt. Each further prompt has the next number.
        encode, decode: functions from text to tokens and back, such as a tokenizer's. Default None:
            bytes.
    """

    changes_numbers = False
    provides = ()

    def __init__(
        self,
        prompts: str | list[str] = "\n",
        interval: PositiveInt = 100,
        max_new_tokens: PositiveInt = 100,
        temperature: NonNegativeFloat = 0.8,
        top_k: PositiveInt | None = None,
        seed: NonNegativeInt = 0,
        encode: Callable[[str], Sequence[int]] | None = None,
        decode: Callable[[list[int]], str] | None = None,
    ):
        # No prompt is rejected as an empty one is.
        self.prompts = [prompts] if isinstance(prompts, str) else list(prompts) or [""]
        self.interval = interval
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self.temperature = temperature
        self.top_k = top_k
        self.encode = encode
        self.decode = decode
        self._vocabulary = 0
        self._tokens: list[list[int]] = []

    def on_before_train(self, trainer: TrainerView) -> None:
        self._vocabulary = vocabulary(trainer)
        self._tokens = [self._encode_prompt(prompt) for prompt in self.prompts]

    def report(self, trainer: TrainerView) -> None:
        texts = [self._continue(trainer, i, tokens) for i, tokens in enumerate(self._tokens)]
        trainer.log_text({"samples": {str(i): text for i, text in enumerate(texts)}})
        if ranks.rank() != 0:
            return
        trainer.context.check_lock()
        text = "\n\n".join(texts) + "\n"
        # A terminal would obey a control character that the model writes.
        printed = printable(text.rstrip())
        trainer.logger.info("Step %d: the model writes:\n%s", trainer.step, printed)
        folder = (trainer.workspace or Path()) / "samples"
        target = folder / f"step-{trainer.step:08d}.txt"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(target, text.encode())
        # A full disk must not end the training.
        except OSError as error:
            trainer.logger.error("%s could not be written: %s.", target, error.strerror)

    def _continue(self, trainer: TrainerView, number: int, prompt: list[int]) -> str:
        """Return the prompt and its continuation, which all ranks compute alike."""
        tokens = list(prompt)
        generator = torch.Generator().manual_seed(self.seed + number)
        for _ in range(self.max_new_tokens):
            scores = next_scores(trainer, tokens)
            tokens.append(choose(scores, self.temperature, self.top_k, generator))
        return self._decode_tokens(tokens)

    def _encode_prompt(self, prompt: str) -> list[int]:
        try:
            if self.encode is not None:
                tokens = [int(token) for token in self.encode(prompt)]
            elif self._vocabulary == BYTES:
                tokens = list(prompt.encode())
            else:
                tokens = [int(word) for word in prompt.split()]
        except ValueError:
            tokens = []
        if not tokens or not all(0 <= token < self._vocabulary for token in tokens):
            raise ConfigError(
                f"hooks.samples.prompts={prompt!r}: must be one or several tokens from 0 to"
                f" {self._vocabulary - 1}; write their numbers, as in '17 4', or set"
                " hooks.samples.encode to a tokenizer's function."
            )
        return tokens

    def _decode_tokens(self, tokens: list[int]) -> str:
        if self.decode is not None:
            return self.decode(tokens)
        if self._vocabulary == BYTES:
            return bytes(tokens).decode(errors="replace")
        return " ".join(map(str, tokens))


def vocabulary(trainer: TrainerView) -> int:
    """Return the size of the model's vocabulary. All ranks must call it."""
    try:
        return len(next_scores(trainer, [0]))
    except ConfigError:
        raise
    except Exception as error:
        name = type(unwrap(trainer.model)).__name__
        raise ConfigError(
            f"hooks.samples: needs a language model, whose logits(tokens [B, T]) returns scores"
            f" [B, T, vocabulary]; {name}.logits raises {type(error).__name__}: {reason(error)}."
            " Choose one, such as model=gpt, or leave the hook out."
        ) from error


def next_scores(trainer: TrainerView, tokens: Sequence[int]) -> torch.Tensor:
    """Scores [vocabulary] of the next token, on the CPU. All ranks must call it."""
    model = trainer.model
    longest = getattr(unwrap(model), "seq_len", None)
    if not isinstance(longest, int) or longest < 1:
        longest = len(tokens)
    input = torch.tensor([tokens[-longest:]], device=trainer.device)
    with (
        evaluating(trainer),
        without_compilation(),
        calls_logits(model),
        trainer.strategy.forward_context(),
    ):
        scores: torch.Tensor = model(input)
    if scores.dim() != 3:
        raise ValueError(f"it returns scores of shape {tuple(scores.shape)}")
    return scores[0, -1].float().cpu()


@contextmanager
def calls_logits(model: nn.Module) -> Iterator[None]:
    """Let the model's forward pass be its `logits`; wrappers still gather sharded weights."""
    module: Any = unwrap(model)
    logits = declared_method(module, "logits")
    if logits is None:
        raise AttributeError(f"{type(module).__name__} declares no such method")
    # An instance may have a `forward` of its own, which is restored.
    forward = vars(module).get("forward")
    module.forward = logits
    try:
        yield
    finally:
        del module.forward
        if forward is not None:
            module.forward = forward


def choose(
    scores: torch.Tensor, temperature: float, top_k: int | None, generator: torch.Generator
) -> int:
    if temperature == 0:
        return int(scores.argmax())
    if top_k is not None and top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(top_k).values[-1], -torch.inf)
    probabilities = (scores / temperature).softmax(0)
    # With NaN, the model is broken.
    return int(torch.multinomial(probabilities.nan_to_num(1.0), 1, generator=generator))
