"""The length of a run in steps or epochs, as far as it is known before the data are read."""

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

from launcher.config.messages import ConfigIssue, show
from launcher.config.tree import Node, Tree, get, items, map_leaves, pick

DEFAULT_STEPS = 500
SCHEDULE_LENGTH = "scheduler.max_steps"
EPOCHS = re.compile(r"(\d+(?:\.\d+)?)\s*epochs?")
"""A number of epochs in place of a number of steps: `1epoch`, `0.5epoch`, `2epochs`."""


def default_steps(epochs: float | None) -> int | None:
    """Default of `trainer.max_steps`."""
    return DEFAULT_STEPS if epochs is None else None


def length_issues(trainer: object, sources: Mapping[str, str]) -> Iterator[ConfigIssue]:
    """Return the issues of the run's length."""
    steps, epochs = pick(trainer, ("max_steps", "max_epochs"))
    if steps is not None and epochs is not None:
        text = (
            f"trainer.max_epochs={show(epochs)} is set too, and only one may be; set the other to"
            " null: trainer.max_epochs=null, or trainer.max_steps=null."
        )
        yield ConfigIssue("trainer.max_steps", show(steps), text)
    if steps is None and epochs is None and "max_steps" in dict(items(trainer)):
        yield ConfigIssue(
            "trainer.max_steps", "null", "a run needs an end; set it, or trainer.max_epochs."
        )
    if steps is not None or epochs is None:
        return
    for key, source in sources.items():
        if source == "trainer.max_steps" and key != SCHEDULE_LENGTH:
            text = (
                f"is not known before the data are read, since trainer.max_epochs={show(epochs)} is"
                f" set; set {key} to a number, or use trainer.max_steps."
            )
            yield ConfigIssue(key, "${trainer.max_steps}", text)


def with_steps(config: Node, steps: float) -> Tree:
    """Return a resolved configuration with another `trainer.max_steps`, also in the schedule."""
    trainer = config["trainer"]
    schedule = get(config, "scheduler", {})
    nodes = {"trainer": {**trainer, "max_steps": steps}}
    # A schedule may have no max_steps, and the trainer's is null with trainer.max_epochs.
    if schedule.get("max_steps", ...) == trainer["max_steps"]:
        nodes["scheduler"] = {**schedule, "max_steps": steps}
    return {**config, **nodes}


def number_of_epochs(value: object) -> Fraction | None:
    """Return the number in a text such as `2epochs`, or None."""
    match = EPOCHS.fullmatch(value.strip()) if isinstance(value, str) else None
    return Fraction(match[1]) if match else None


def with_epochs(tree: object, convert: Callable[[Fraction, str], object]) -> object:
    """A value, list or mapping in which each number of epochs is converted, with its dotted key."""

    def change(value: object, keys: tuple[object, ...]) -> object:
        epochs = number_of_epochs(value)
        if epochs is None:
            return value
        return convert(epochs, ".".join(map(str, keys)))

    return map_leaves(tree, change)
