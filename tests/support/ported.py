"""The shapes of two projects of others: graphs in one batch, and a dataset that opens a pool."""

from multiprocessing import get_context
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

Graph = dict[str, torch.Tensor]


class Graphs(Dataset[Graph]):
    """Graphs of 4 to 12 nodes, as a dataset of PyTorch Geometric has them."""

    def __init__(self, size: int = 19, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.graphs = [self._draw(generator) for _ in range(size)]

    def _draw(self, generator: torch.Generator) -> Graph:
        nodes = int(torch.randint(4, 13, (), generator=generator))
        x = torch.randn(nodes, 3, generator=generator)
        edges = torch.randint(nodes, (2, 2 * nodes), generator=generator)
        return {"x": x, "edges": edges, "y": (x.sum() > 0).long()}

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Graph:
        return self.graphs[index]


def collate(graphs: list[Graph]) -> dict[str, torch.Tensor]:
    """Concatenate the nodes of all graphs, and move the edges to them."""
    counts = torch.tensor([len(graph["x"]) for graph in graphs])
    firsts = (counts.cumsum(0) - counts).tolist()
    edges = [graph["edges"] + first for graph, first in zip(graphs, firsts, strict=True)]
    return {
        "x": torch.cat([graph["x"] for graph in graphs]),
        "edges": torch.cat(edges, dim=1),
        "owner": torch.arange(len(graphs)).repeat_interleave(counts),
        "y": torch.stack([graph["y"] for graph in graphs]),
    }


class GraphNet(nn.Module):
    """Means over neighbours, and over the nodes of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.node, self.head = nn.Linear(6, 8), nn.Linear(8, 2)
        self.dropout = nn.Dropout(0.2)

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        x, (source, target) = batch["x"], batch["edges"]
        messages = torch.zeros_like(x).index_add(0, target, x[source])
        nodes = self.dropout(self.node(torch.cat([x, messages], dim=1)).relu())
        sums = nodes.new_zeros(len(batch["y"]), 8).index_add(0, batch["owner"], nodes)
        logits = self.head(sums)
        accuracy = (logits.argmax(-1) == batch["y"]).double().mean()
        return nn.functional.cross_entropy(logits, batch["y"]), {"accuracy": accuracy}


def count_values(mask: torch.Tensor) -> int:
    return int(mask.max()) + 1


class Masks(Dataset[Any]):
    """Images and masks, which the constructor scans in a pool of processes."""

    def __init__(self, size: int = 19, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.rand(size, 1, 8, 8, generator=generator)
        self.masks = (self.images[:, 0] * 3).long()
        with get_context("fork").Pool(2) as pool:
            self.classes = max(pool.imap(count_values, self.masks))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, mask = self.images[index], self.masks[index]
        # A random flip, as projects for segmentation draw it.
        if torch.rand(()) < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        return image, mask


class SmallNet(nn.Module):
    """A convolution, with cross-entropy and Dice."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1)
        )

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> Any:
        logits = self.net(batch[0])
        chances = logits.softmax(1)
        one_hot = nn.functional.one_hot(batch[1], 3).movedim(-1, 1)
        dice = 2 * (chances * one_hot).sum() / (chances + one_hot).sum()
        return nn.functional.cross_entropy(logits, batch[1]) + 1 - dice, {"dice": dice.detach()}
