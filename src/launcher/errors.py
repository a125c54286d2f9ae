"""Errors that the user can fix: messages on the screen and exit code 2, never a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

REJECTED = 2
"""The exit code of a command that a `ConfigError` has rejected."""
OUT_OF_MEMORY = ("OutOfMemoryError", "can't allocate memory", "MPS backend out of memory")
"""Words of torch's errors on a GPU, on the CPU and on mps."""


class ConfigError(Exception):
    """A wrong command line or configuration.

    Each message names the key, its value and the fix: `optimizer.lr='abc': should be a number; e.g.
    optimizer.lr=0.001.`

    Examples:
        >>> try:
        ...     launcher.compose("optimizer.lrr=1")
        ... except ConfigError as error:
        ...     print(error.messages[0])
        optimizer.lrr=1: no key optimizer.lrr; did you mean optimizer.lr=1?
    """

    def __init__(self, *messages: str):
        super().__init__("\n".join(messages))
        self.messages = list(messages)


@contextmanager
def needing(message: str) -> Iterator[None]:
    """Turn an ImportError of an optional library within the context into this message."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(message) from error


def config_error(error: BaseException) -> ConfigError | None:
    """Return the ConfigError that `error` is or was raised from, as Hydra wraps exceptions."""
    return next((cause for cause in causes(error) if isinstance(cause, ConfigError)), None)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, the error that it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


class TrainingError(RuntimeError):
    """Training cannot continue: too many non-finite gradients, or a state that does not fit.

    Examples:
        >>> class Undefined(Line):
        ...     def forward(self, batch):
        ...         return 0 * self.model(batch[0]).sum() / 0, {}
        >>> Undefined(max_steps=9, device="cpu", max_consecutive_skipped_steps=2).train()
        Traceback (most recent call last):
        launcher.errors.NonFiniteError: ...
    """


class NonFiniteError(TrainingError):
    """The gradient, or the loss at the end, is not finite. The same steps give it again."""


def is_out_of_memory(error: str) -> bool:
    return any(words in error for words in OUT_OF_MEMORY)
