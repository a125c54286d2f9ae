"""Custom data: any dataset of your own, named by `_target_`."""

from collections.abc import Mapping
from typing import Any

from launcher.config.construct import instantiate
from launcher.config.messages import show
from launcher.data.base import DataSource
from launcher.errors import ConfigError
from launcher.types import NonNegativeInt, PositiveInt


class CustomData(DataSource):
    """A user's map-style or iterable dataset; docs/tutorial.md has a complete example.

    Its configuration has `_recursive_: false`: the datasets are passed as nodes, and built when
    training needs them.

    Args:
        dataset: the training samples, as a node with `_target_` or a dataset.
        val_dataset: the held-out samples, likewise. Default null: none.
        val_datasets: further sets of held-out samples by name. Their metrics are `val/<name>/...`.
        test_dataset: the samples of `job=evaluate job.split=test`, likewise; null: none.
        predict: the samples of `job=predict`, likewise; null: none.
        collate_fn: makes a batch from a list of samples: a node with `_target_` (and `_partial_:
            true` for a function), or a callable; null: `torch.utils.data.default_collate`.
        val_collate_fn: makes a batch of held-out samples, likewise. Default null: the same as
            `collate_fn`.
        seed_samples: seed the random numbers of each sample (see
            `launcher.data.loader.ResumableLoader`). Without it a dataset's `get_batch` or
            `__getitems__` is used, and random augmentation depends on the number of workers and
            cannot be repeated by a resume.
        vocab_size, seq_len, num_features, num_classes: for models whose configuration refers to
            them.
    """

    def __init__(
        self,
        *,
        dataset: Any,
        batch_size: PositiveInt,
        val_batch_size: PositiveInt | None = None,
        val_dataset: Any = None,
        collate_fn: Any = None,
        seed_samples: bool = True,
        shuffle: bool = True,
        num_workers: NonNegativeInt = 0,
        vocab_size: PositiveInt | None = None,
        seq_len: PositiveInt | None = None,
        num_features: PositiveInt | None = None,
        num_classes: PositiveInt | None = None,
        val_datasets: dict[str, Any] | None = None,
        test_dataset: Any = None,
        val_collate_fn: Any = None,
        predict: Any = None,
    ):
        super().__init__(
            batch_size=batch_size,
            val_batch_size=val_batch_size,
            num_workers=num_workers,
            shuffle=shuffle,
        )
        self.seed_samples = seed_samples
        self.vocab_size = vocab_size
        self.seq_len = seq_len
        self.num_features = num_features
        self.num_classes = num_classes
        self._dataset = dataset
        self._val_dataset = val_dataset
        self._val_datasets = val_datasets or {}
        self._test_dataset = test_dataset
        self._predict = predict
        self.val_names = [str(name) for name in self._val_datasets]
        self.collate = make(collate_fn, "data.collate_fn")
        self.val_collate = make(val_collate_fn, "data.val_collate_fn")

    def train_dataset(self) -> Any:
        return make(self._dataset, "data.dataset")

    def val_dataset(self) -> Any | None:
        return make(self._val_dataset, "data.val_dataset")

    def test_dataset(self) -> Any | None:
        return make(self._test_dataset, "data.test_dataset")

    def predict_dataset(self) -> Any | None:
        if isinstance(self._predict, str | list):
            raise ConfigError(
                f"data.predict={self._predict}: should be a dataset with this data source; name it,"
                " e.g. data.predict={_target_:my_package.MyDataset}."
            )
        return make(self._predict, "data.predict")

    def named_val_dataset(self, name: str) -> Any:
        return make(self._val_datasets[name], f"data.val_datasets.{name}")


def make(part: object, path: str) -> Any:
    """Build a node with `_target_`, which is at this path. Anything else is returned unchanged."""
    if not (isinstance(part, Mapping) and "_target_" in part):
        return part
    # It imports torch, and a missing file is reported sooner.
    from launcher.data.iterable import length

    made = instantiate(part, path)
    if length(made) == 0:
        own = (f"{key}={show(part[key])}" for key in map(str, part) if not key.startswith("_"))
        raise ConfigError(f"{path}: {type(made).__name__}({', '.join(own)}) is empty.")
    return made
