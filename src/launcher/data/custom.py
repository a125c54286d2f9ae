"""Custom data: any dataset of your own, named by `_target_`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcher.config.construct import instantiate
from launcher.config.messages import show
from launcher.data.base import DataSource
from launcher.errors import ConfigError
from launcher.types import NumWorkers, PositiveInt

if TYPE_CHECKING:
    from torch.utils.data import Dataset


class CustomData(DataSource):
    """A user's map-style or iterable dataset; docs/tutorial.md has a complete example.

    Its configuration has `_recursive_: false`: the datasets are passed as nodes, and built when
    training needs them.

    Args:
        dataset: the training samples, as a node with `_target_` or a dataset.
        val_dataset, test_dataset, predict: the samples of evaluations, of `job=evaluate
            job.split=test` and of `job=predict`. Default null: none.
        val_datasets: further validation sets by name. Their metrics are `val/<name>/...`.
        collate_fn: makes a batch from a list of samples: a node with `_target_` (and `_partial_:
            true` for a function), or a callable; null: `torch.utils.data.default_collate`.
        val_collate_fn: makes a batch of held-out samples. Default null: `collate_fn`.
        seed_samples: seed the random numbers of each sample (see
            `launcher.data.loader.ResumableLoader`). Without it a dataset's `get_batch` or
            `__getitems__` is used, but a resume does not repeat random augmentation.
        vocab_size, seq_len, num_features, num_classes: for models whose configuration refers to
            them.
    """

    def __init__(
        self,
        *,
        dataset: "Dataset[Any]",
        batch_size: PositiveInt,
        val_batch_size: PositiveInt | None = None,
        val_dataset: Any = None,
        collate_fn: Any = None,
        seed_samples: bool = True,
        shuffle: bool = True,
        num_workers: NumWorkers = 0,
        vocab_size: PositiveInt | None = None,
        seq_len: PositiveInt | None = None,
        num_features: PositiveInt | None = None,
        num_classes: PositiveInt | None = None,
        val_datasets: "dict[str, Dataset[Any]] | None" = None,
        test_dataset: Any = None,
        val_collate_fn: Any = None,
        predict: Any = None,
        skip: list[list[PositiveInt]] | None = None,
    ):
        super().__init__(
            batch_size=batch_size,
            val_batch_size=val_batch_size,
            num_workers=num_workers,
            shuffle=shuffle,
            skip=skip,
        )
        self.seed_samples = seed_samples
        self.vocab_size, self.seq_len = vocab_size, seq_len
        self.num_features, self.num_classes = num_features, num_classes
        self._nodes = {
            "dataset": dataset,
            "val_dataset": val_dataset,
            "test_dataset": test_dataset,
            "predict": predict,
        }
        self._val_datasets = val_datasets or {}
        self.val_names = [str(name) for name in self._val_datasets]
        self.collate = make(collate_fn, "data.collate_fn")
        self.val_collate = make(val_collate_fn, "data.val_collate_fn")

    def train_dataset(self) -> Any:
        return self._make("dataset")

    def val_dataset(self) -> Any | None:
        return self._make("val_dataset")

    def test_dataset(self) -> Any | None:
        return self._make("test_dataset")

    def predict_dataset(self) -> Any | None:
        node = self._nodes["predict"]
        if isinstance(node, str | list):
            raise ConfigError(
                f"data.predict={node}: should be a dataset with this data source, e.g."
                " data.predict={_target_:my_package.MyDataset}."
            )
        return self._make("predict")

    def named_val_dataset(self, name: str) -> Any:
        return make(self._val_datasets[name], f"data.val_datasets.{name}")

    def _make(self, key: str) -> Any:
        return make(self._nodes[key], f"data.{key}")


def make(part: object, path: str) -> Any:
    """Build a node with `_target_`, which is at this path. An object is returned unchanged."""
    if isinstance(part, Mapping) and "_target_" in part:
        return instantiate(part, path)
    if isinstance(part, str | dict | int | float):
        way = f"{path}._target_={part if isinstance(part, str) else 'my_package.MyPart'}"
        raise ConfigError(f"{path}={show(part)}: should be a part with a _target_; e.g. {way}.")
    return part
