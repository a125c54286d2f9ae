"""Batches of many forms, of the same samples: sequences of several lengths, with a target."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from launcher import BaseTrainer, EvaluationHook
from launcher.data import EvaluationLoader
from launcher.process import ranks
from support.toy import Recorder

Sample = tuple[torch.Tensor, torch.Tensor]
SIZE, SIZES = 11, (1, 4, 11)


class Sequences(Dataset[Sample]):
    """Sample i has 1 to 5 values, and a target."""

    def __init__(self, size: int = SIZE, has_equal_lengths: bool = False):
        self.size, self.has_equal_lengths = size, has_equal_lengths

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Sample:
        length = 3 if self.has_equal_lengths else 1 + index * 7 % 5
        return torch.arange(length) + float(index), torch.tensor(index % 3 - 1.0)


class Stream(IterableDataset[Sample]):
    def __iter__(self) -> Iterator[Sample]:
        data = Sequences()
        yield from (data[index] for index in range(SIZE))


def plain(samples: list[Sample]) -> Any:
    """The usual form, padded: values and mask [B, T], targets [B]."""
    values, lengths, targets = packed(samples)
    mask = torch.arange(values.shape[0])[:, None] < lengths
    return values.T, mask.T, targets


def graphs(samples: list[Sample]) -> Any:
    """The nodes of all graphs in one tensor, as PyTorch Geometric collates."""
    owner = [torch.full((len(values),), number) for number, (values, _) in enumerate(samples)]
    return {
        "x": torch.cat([values for values, _ in samples]),
        "owner": torch.cat(owner),
        "y": torch.stack([target for _, target in samples]),
    }


def packed(samples: list[Sample]) -> Any:
    """Time first: values [T, B], lengths and targets [B]."""
    values = nn.utils.rnn.pad_sequence([values for values, _ in samples])
    lengths = torch.tensor([len(values) for values, _ in samples])
    return values, lengths, torch.stack([target for _, target in samples])


def detection(samples: list[Sample]) -> Any:
    """Lists of tensors of different shapes."""
    return [values for values, _ in samples], [{"target": target} for _, target in samples]


def other_order(samples: list[Sample]) -> Any:
    """A dict whose first tensor does not have the samples."""
    return {"range": torch.arange(7)} | dict(reversed(graphs(samples).items()))


COLLATES: dict[str, Callable[[list[Sample]], Any]] = {
    collate.__name__: collate for collate in (plain, graphs, packed, detection, other_order)
}


def samples_of(batch: Any) -> list[Sample]:
    """Take a batch apart."""
    if isinstance(batch, dict):
        count = len(batch["y"])
        return [(batch["x"][batch["owner"] == at], batch["y"][at]) for at in range(count)]
    if len(batch) == 2:
        return [(values, other["target"]) for values, other in zip(*batch, strict=True)]
    if batch[1].dtype == torch.bool:
        return [(row[mask], target) for row, mask, target in zip(*batch, strict=True)]
    values, lengths, targets = batch
    return [(values[:n, at], targets[at]) for at, n in enumerate(lengths.tolist())]


class MeanModel(nn.Module):
    """Its loss is a mean over samples, of whatever form the batch is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.3))

    def forward(self, batch: Any) -> Any:
        samples = samples_of(batch)
        errors = [self.weight * values.mean() - target for values, target in samples]
        return torch.stack(errors).square().mean(), {"error": torch.stack(errors).mean()}


class Collated(BaseTrainer):
    def __init__(self, hooks: list[Any], loader: Any = None, **settings: Any):
        super().__init__(**{"max_steps": 1, "device": "cpu"} | settings)
        self.given, self.loader = hooks, loader

    def build_data_loader(self) -> Any:
        return self.loader or DataLoader(Sequences(), 4, collate_fn=plain)

    def build_model(self) -> nn.Module:
        return MeanModel()

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def build_hooks(self) -> list[Any]:
        return self.given

    def forward(self, input: Any) -> Any:
        return self.model(input)


def own_loaders(collate: Any, size: int) -> dict[str, DataLoader[Any]]:
    """A user's loaders of this rank's batches, which take turns."""
    indices = [*BatchSampler(range(SIZE), size, False)][ranks.rank() :: ranks.world_size()]
    options: dict[str, Any] = {"collate_fn": collate}
    loaders = {"batch sampler": DataLoader(Sequences(), batch_sampler=indices, **options)}
    if ranks.world_size() == 1:
        loaders["batch size"] = DataLoader(Sequences(), size, **options)
        loaders["stream"] = DataLoader(Stream(), size, **options)
    if ranks.world_size() == 1 and size == 4:
        options["num_workers"] = 1
        loaders["a worker"] = DataLoader(Sequences(), size, **options)
        loaders["any order"] = DataLoader(Sequences(), size, in_order=False, **options)
    return loaders


def collated_means(kind: str, size: int) -> dict[str, dict[str, float]]:
    """The means over the samples as this rank logs them, by the loader that made the batches."""
    ranks.join(torch.device("cpu"))
    collate = COLLATES[kind]
    loader = EvaluationLoader(
        Sequences(), size, ranks.rank(), ranks.world_size(), collate_fn=collate
    )
    stream = EvaluationLoader(Stream(), size, ranks.rank(), ranks.world_size(), collate_fn=collate)
    loaders = {"ours": loader, "our stream": stream} | own_loaders(collate, size)
    logged = Recorder()
    makers = {name: lambda batches=batches: batches for name, batches in loaders.items()}
    hook = EvaluationHook(100, loader=makers)
    Collated([hook, logged]).train()
    ranks.leave()
    return logged.records[0][1]["val"]
