"""Rules of several optimizers (`optimizer.parts`).

The code that depends on a rule checks it as well.
"""

import re
from collections.abc import Iterator

from launcher.config.messages import ConfigIssue, show
from launcher.config.needs import parts
from launcher.config.signature import attribute
from launcher.config.source import NotFound
from launcher.config.tree import get

OPTIMIZERS = "launcher.optim.parts.optimizer_parts"
PART = re.compile(r"(optimizer|scheduler)\.parts\.[^.]+")
"""The path of one of several optimizers, or of its schedule."""
DEEPSPEED = "launcher.strategies.deepspeed.DeepSpeedStrategy"
MIXTURE = "launcher.data.mixture.MixtureData"
LR_FIND = "launcher.jobs.lr_find.LRFindJob"
THROUGHPUT = "launcher.hooks.throughput.ThroughputHook"
TEXT = "does not support several optimizers (optimizer.parts)"


def part_issues(tree: dict[str, object]) -> Iterator[ConfigIssue]:
    """Return the issues of several optimizers with parts that do not support them."""
    for group in ("optimizer", "scheduler"):
        nodes = get(tree, f"{group}.parts")
        for name, node in nodes.items() if isinstance(nodes, dict) else ():
            if not (isinstance(node, dict) and "_target_" in node):
                key = f"{group}.parts.{name}"
                text = f"has no _target_; name its class or function: {key}._target_=..."
                yield ConfigIssue(key, None, text)
    if get(tree, "optimizer._target_") != OPTIMIZERS:
        return
    if get(tree, "optimizer.parts") == {}:
        text = "is empty; name an optimizer for each part of the model, as docs/optimizers.md does."
        yield ConfigIssue("optimizer.parts", None, text)
    if (lanes := get(tree, "trainer.lanes")) is not None:
        yield ConfigIssue("trainer.lanes", show(lanes), f"{TEXT}; use null.")
    if (retries := get(tree, "trainer.max_non_finite_grad_retries")) is not None:
        yield ConfigIssue(
            "trainer.max_non_finite_grad_retries",
            show(retries),
            f"{TEXT}: the first has updated already; use null, which skips the update.",
        )
    if (metric := get(tree, "scheduler.metric")) is not None:
        yield ConfigIssue("scheduler.metric", show(metric), f"{TEXT}; use scheduler=cosine.")
    for key, target, advice in (
        ("strategy", DEEPSPEED, "use strategy=ddp"),
        ("data", MIXTURE, "use data of one source"),
        ("job", LR_FIND, "set the rates yourself"),
    ):
        if get(tree, f"{key}._target_") == target:
            yield ConfigIssue(key, target.rpartition(".")[2], f"{TEXT}; {advice}.")
    for name, node in parts(tree, "hooks").items():
        try:
            if attribute(node["_target_"], "needs_one_optimizer"):
                yield ConfigIssue(f"hooks.{name}", None, f"{TEXT}; leave it out.")
        except NotFound:  # it is reported
            continue
        if node["_target_"] == THROUGHPUT and node.get("flops", True):
            yield ConfigIssue(f"hooks.{name}.flops", "true", f"{TEXT}; use false.")
