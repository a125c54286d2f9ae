"""Decide which of two values of a metric is better, for training and for the ranking of runs."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Literal, TypeVar

Mode = Literal["min", "max"]
T = TypeVar("T")

NOISE = 1e-6
"""Relative difference below which two values count as equal. The order of summation changes a
float32 mean by about 1e-7."""
LESS_IS_BETTER = {
    "loss", "logloss", "error", "err", "perplexity", "ppl", "nll", "entropy", "ce", "bce", "mse",
    "rmse", "mae", "mape",
    "wer", "cer", "ter", "fid", "kid", "lpips", "ece", "brier", "bits", "bpb", "bpc", "divergence",
    "kl",
    "distance", "regret",
}  # fmt: skip
MORE_IS_BETTER = {
    "accuracy", "acc", "f", "auc", "auroc", "auprc", "ap", "map", "precision", "recall",
    "sensitivity",
    "specificity", "bleu", "rouge", "chrf", "meteor", "cider", "spice", "bertscore", "iou", "miou",
    "dice",
    "jaccard", "psnr", "ssim", "r", "score", "reward", "return", "success", "hit", "hits", "mrr",
    "ndcg", "em",
    "kappa", "mcc", "correlation", "pearson", "spearman", "top",
}  # fmt: skip
QUALIFIERS = {
    "score", "top", "rate", "value", "percent", "pct", "total", "sum", "mean", "avg", "average",
    "macro", "micro",
    "weighted", "overall", "all", "ema", "best", "last", "final", "train", "val", "valid",
    "validation", "dev", "test",
}  # fmt: skip
"""Words that may follow the deciding word and do not change its direction."""
PREPOSITIONS = {
    "at",
    "of",
    "per",
    "to",
    "until",
    "by",
    "for",
    "from",
    "in",
    "on",
    "over",
    "under",
    "vs",
    "with",
}
NEGATIONS = {
    "neg",
    "negative",
    "negated",
    "minus",
    "inv",
    "inverse",
    "inverted",
    "reciprocal",
    "non",
    "not",
    "un",
}


def direction(metric: str) -> Mode | None:
    """Infer the direction in which a metric improves from its name.

    The last word of a compound decides, as in English (`top1_error`). Exceptions are qualifiers
    (`loss_total`) and words after a preposition (`recall_at_5`). An unknown word there may reverse
    the meaning (`accuracy_drop`), and so does a negation (`neg_mse`).

    Returns:
        None if the name does not show it.
    """
    parts = re.findall(r"[a-z]+", metric.lower())
    head = list(takewhile(lambda word: word not in PREPOSITIONS, parts))
    if NEGATIONS & set(parts):
        return None
    skipped = []
    while head and head[-1] in QUALIFIERS:
        skipped.append(head.pop())
    if head and head[-1] in LESS_IS_BETTER:
        return "min"
    is_more = (head and head[-1] in MORE_IS_BETTER) or MORE_IS_BETTER & set(skipped)
    return "max" if is_more else None


def is_better(new: float, old: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """Compare two values.

    NaN and infinity never do, and any finite value improves on None.

    Returns:
        True if the new one improves on the old one by more than rounding and `min_delta`.
    """
    if not math.isfinite(new):
        return False
    if old is None:
        return True
    gain = old - new if mode == "min" else new - old
    return gain > max(min_delta, NOISE * abs(old))


def best_index(values: Iterable[float], mode: Mode) -> int | None:
    """Return the index of the best value, or None if no value is finite.

    Of equal values the first is the best, as in training.
    """
    best, best_at = None, None
    for index, value in enumerate(values):
        if is_better(value, best, mode):
            best, best_at = value, index
    return best_at


def ranked(items: Iterable[T], value: Callable[[T], float | None], mode: Mode) -> list[T]:
    """Sort the items, the best first.

    Items whose values differ only by rounding keep their order, and items without a finite value
    come last.
    """

    def finite(item: T) -> float | None:
        number = value(item)
        return number if number is not None and math.isfinite(number) else None

    pairs: Sequence[tuple[int, T, float | None]] = [
        (index, item, finite(item)) for index, item in enumerate(items)
    ]
    known = [(index, item, number) for index, item, number in pairs if number is not None]
    known.sort(key=lambda entry: entry[2], reverse=mode == "max")
    groups: list[list[tuple[int, T, float]]] = []
    for entry in known:
        if not groups or is_better(groups[-1][0][2], entry[2], mode):
            groups.append([])
        groups[-1].append(entry)
    order = [
        (index, item)
        for group in groups
        for index, item, _ in sorted(group, key=lambda entry: entry[0])
    ]
    return [item for _, item in order] + [item for _, item, number in pairs if number is None]
