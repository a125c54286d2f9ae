"""Errors of a configuration, and how messages show values and suggestions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from launcher.errors import ConfigError

ELSEWHERE = {
    "trainer.micro_batch_size, the samples of one pass; a step has data.batch_size samples": (
        "accumulate_grad_batches accumulation_steps grad_accum grad_accum_steps"
        " grad_accumulation_steps gradient_accumulation gradient_accumulation_steps"
    ),
    "trainer.max_grad_norm": (
        "clip_grad clip_grad_norm grad_clip gradient_clip_val gradient_clipping"
    ),
    "trainer.activation_checkpointing": "gradient_checkpointing grad_checkpointing",
    "optimizer.lr": "learning_rate base_lr",
    "trainer.max_epochs": "num_epochs num_train_epochs n_epochs",
    "dispatch.nproc": "devices num_gpus gpus nproc_per_node",
}
"""Our keys, and the keys of other trainers for the same, at the top or in `trainer`."""


@dataclass(frozen=True)
class ConfigIssue:
    """Problem with a key. `value` is its value as shown, or None if the message needs no value."""

    key: str
    value: str | None
    text: str

    def __str__(self) -> str:
        value = "" if self.value is None else f"={self.value}"
        return f"{self.key}{value}: {self.text}"


def raise_issues(issues: Iterable[ConfigIssue]) -> None:
    """Raise one error with all issues, if there are any."""
    messages = list(map(str, issues))
    if messages:
        raise ConfigError(*messages)


@dataclass(frozen=True)
class MissingValue(ConfigIssue):
    """A key that must be set is not."""


@dataclass(frozen=True)
class WrongType(ConfigIssue):
    """The value is not of the key's type."""


def show(value: object, limit: int = 60) -> str:
    """Format a value as on a command line (null, true, 'text', [1,2]), in `limit` characters."""
    text = _format(value, repr)
    if len(text) <= limit:
        return text
    return f"{text[: limit - 4]} ...{text[-1] if text[-1] in ']}' else ''}"


def to_override_text(value: object) -> str:
    """A value as it is typed on a command line: `null`, `true`, `0.001`, `text`, `[a,b]`."""
    return _format(value, str)


def _format(value: object, text: Callable[[str], str]) -> str:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(_format(item, text) for item in value)}]"
    if isinstance(value, dict):
        items = (f"{key}:{_format(item, text)}" for key, item in value.items())
        return "{" + ",".join(items) + "}"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def describe_type(value: object) -> str:
    """Describe the type of a value for a message: "a Tensor"."""
    if value is None:
        return "nothing (None)"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def reason(error: BaseException) -> str:
    """Return the first line of an error's message without a full stop, else the error's type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def closest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, else the shortest that contains it or is part of it."""
    candidates = list(names)
    folded = {candidate.lower(): candidate for candidate in candidates}
    for close in get_close_matches(name.lower(), folded):
        if abs(len(close) - len(name)) <= max(2, len(name) // 3):  # `epochs` is not `eps`
            return folded[close]
    parts = (each for each in candidates if name in each or each in name)
    return min(parts, key=len, default=None) if len(name) > 2 else None


def hint(name: str, names: Iterable[str], template: str = "{}") -> str:
    """Format a suggestion (`; did you mean X?`, X as in `model={}`), or a full stop."""
    near = closest_name(name, names)
    return f"; did you mean {template.format(near)}?" if near else "."


LEFT_OUT = {
    "dispatch.runs_per_job": (
        "is left out; run the sweep inside one job, whose script has dispatch.parallel=N (see"
        " docs/slurm.md, A sweep inside a job)."
    )
}
"""Keys of an earlier version, and what to use instead."""


def key_for(key: str) -> str | None:
    """Return the message for a key of another trainer, or of an earlier version, or None."""
    if key in LEFT_OUT:
        return LEFT_OUT[key]
    name = key.removeprefix("trainer.")
    meant = (ours for ours, theirs in ELSEWHERE.items() if name in theirs.split())
    return next((f"no key {key}; use {ours}." for ours in meant), None)
