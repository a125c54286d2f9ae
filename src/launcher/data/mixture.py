"""Several datasets, drawn by weights that may change at given positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any, ClassVar, Literal

from launcher.config.construct import target_object
from launcher.config.schema.matters_from import ALL_STEPS, Pair
from launcher.config.tree import Node
from launcher.data.base import DataSource
from launcher.data.custom import make
from launcher.data.mixture_dataset import Mixture
from launcher.data.mixture_order import Weights
from launcher.errors import ConfigError
from launcher.types import PositiveInt

MIXTURE_KEYS = ("weight", "val_dataset")
"""Keys of a source that its `_target_` does not get."""


def before_other_weights(one: Node, other: Node, pair: Pair) -> int:
    """Return the first steps in which two mixtures have the same weights at each position."""
    settings = {key: value for key, value in one.items() if key[0] != "_"}
    schedules = [
        MixtureData(**settings | {"stages": node.get("stages") or []}).schedule()
        for node in (one, other)
    ]
    starts = sorted({at for schedule in schedules for at, _ in schedule})
    weights = [
        [next(weights for at, weights in reversed(schedule) if at <= start) for start in starts]
        for schedule in schedules
    ]
    first = next((at for at, a, b in zip(starts, *weights, strict=True) if a != b), ALL_STEPS)
    return first // int(one["batch_size"])


@dataclass(kw_only=True, eq=False)
class MixtureData(DataSource):
    """Samples of several map-style datasets.

    Args:
        sources: the sources by name. Each is a node with the `_target_` of a dataset (or of a data
            source such as `launcher.data.tokens.TokenData`), its arguments, `weight` (1 if it is
            missing) and `val_dataset`.
        stages: other weights from a position on, `[{at: 10000, weights: {web: 0.5}}]`. Sources that
            a stage does not name keep their weights.
        exhausted: what happens when a source has no more samples (see `MixtureOrder`).
    """

    matters_from: ClassVar = {"stages": before_other_weights}

    sources: dict[str, dict[str, Any]]
    stages: list[dict[str, object]] = field(default_factory=list)
    exhausted: Literal["repeat", "stop", "renormalise"] = "repeat"
    seed_samples: bool = True
    collate_fn: object = None
    vocab_size: PositiveInt | None = None
    seq_len: PositiveInt | None = None
    num_features: PositiveInt | None = None
    num_classes: PositiveInt | None = None

    def __post_init__(self) -> None:
        self._built: dict[str, object] = {}
        self.collate = make(self.collate_fn, "data.collate_fn")
        self.val_names = [
            name
            for name, node in (self.sources or {}).items()
            if "val_dataset" in node or is_data_source(node)
        ]

    def check(self) -> None:
        if not self.sources:
            raise ConfigError(
                "data.sources={}: names no source; e.g. +data.sources.web._target_=my.Web."
            )
        self.schedule()
        for name, node in self.sources.items():
            if "/" in name or name == "loss":
                raise ConfigError(f"data.sources.{name}: metrics cannot have this name.")
            if is_data_source(node) and node.get("skip"):
                raise ConfigError(
                    f"data.sources.{name}.skip={node['skip']}: a mixture has no samples of a step"
                    " that could be passed over; leave it out."
                )

    def schedule(self) -> list[tuple[int, Weights]]:
        """Return the weights, each with the first sample to which they apply."""
        weights = {name: node.get("weight", 1.0) for name, node in self.sources.items()}
        schedule = [(0, check_weights(weights, "data.sources"))]
        for number, stage in enumerate(self.stages):
            key = f"data.stages[{number}]"
            if set(stage) != {"at", "weights"} or not isinstance(stage["weights"], Mapping):
                raise ConfigError(f"{key}: should be like {{at: 10000, weights: {{web: 1}}}}.")
            if type(stage["at"]) is not int or stage["at"] < 0:
                raise ConfigError(f"{key}.at={stage['at']}: should be a whole number, 0 or more.")
            unknown = [name for name in stage["weights"] if name not in self.sources]
            if unknown:
                names = ", ".join(self.sources)
                raise ConfigError(f"{key}.weights.{unknown[0]}: the sources are {names}.")
            weights = check_weights({**schedule[-1][1], **stage["weights"]}, f"{key}.weights")
            at = stage["at"]
            schedule = [*schedule, (at, weights)] if at or number else [(0, weights)]
        for (before, _), (after, _) in pairwise(schedule):
            if after <= before:
                raise ConfigError(f"data.stages: at={after} follows at={before}; sort them.")
        return schedule

    def train_dataset(self) -> Mixture:
        datasets = {name: self._part(name, "train_dataset") for name in self.sources}
        return Mixture(datasets, self.schedule(), self.exhausted)

    def val_dataset(self) -> Mixture | None:
        datasets = {name: self.named_val_dataset(name) for name in self.val_names}
        present = {name: dataset for name, dataset in datasets.items() if dataset is not None}
        if present:
            return Mixture(present, [(0, dict.fromkeys(present, 1.0))], "repeat")
        return None

    def named_val_dataset(self, name: str) -> object:
        return self._part(name, "val_dataset")

    def _part(self, name: str, method: str) -> object:
        """Return a source's dataset, which a data source's `method` makes."""
        node = self.sources[name]
        if method == "val_dataset" and "val_dataset" in node:
            return make(node["val_dataset"], f"data.sources.{name}.val_dataset")
        if name not in self._built:
            arguments = {key: value for key, value in node.items() if key not in MIXTURE_KEYS}
            if is_data_source(node):
                arguments = {"batch_size": self.batch_size, **arguments}
            self._built[name] = make(arguments, f"data.sources.{name}")
        part = self._built[name]
        if isinstance(part, DataSource):
            return getattr(part, method)()
        return part


def is_data_source(node: Node) -> bool:
    target = target_object(str(node["_target_"]))
    return isinstance(target, type) and issubclass(target, DataSource)


def check_weights(weights: Mapping[str, Any], key: str) -> Weights:
    for name, weight in weights.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not isfinite(weight) or weight < 0:
            weight_key = f"{key}.{name}.weight" if key == "data.sources" else f"{key}.{name}"
            raise ConfigError(f"{weight_key}={weight}: should be a number, 0 or more.")
    if not any(weights.values()):
        raise ConfigError(f"{key}: all weights are 0; give at least one source a weight.")
    return {str(name): float(weight) for name, weight in weights.items()}
