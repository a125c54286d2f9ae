"""Whether less or more of a metric is better."""

import re
from typing import Literal

LESS_IS_BETTER = {
    "loss", "error", "err", "perplexity", "ppl", "nll", "entropy", "ce", "bce", "mse", "rmse", "mae", "mape",
    "wer", "cer", "ter", "fid", "kid", "lpips", "ece", "brier", "bits", "bpb", "bpc", "divergence", "kl",
    "distance", "regret",
}  # fmt: skip
MORE_IS_BETTER = {
    "accuracy", "acc", "f", "auc", "auroc", "auprc", "ap", "map", "precision", "recall", "sensitivity",
    "specificity", "bleu", "rouge", "chrf", "meteor", "cider", "spice", "bertscore", "iou", "miou", "dice",
    "jaccard", "psnr", "ssim", "r", "score", "reward", "return", "success", "hit", "hits", "mrr", "ndcg", "em",
    "kappa", "mcc", "correlation", "pearson", "spearman", "top",
}  # fmt: skip


def direction(metric: str) -> Literal["min", "max"] | None:
    """Whether less or more of a metric is better, by the last word of its name that says so; None: no word does."""
    for word in reversed(re.findall(r"[a-z]+", metric.lower())):
        if word in LESS_IS_BETTER:
            return "min"
        if word in MORE_IS_BETTER:
            return "max"
    return None
